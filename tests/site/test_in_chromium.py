"""The built site in Chromium: pages, search, gallery, reference, dark colours, a phone's width, accessibility."""

import re
import time

import pytest
from website.built_links import check
from website.gallery import names

pytestmark = pytest.mark.full

START, GALLERY, GELU, SURGERY = "index.html", "gallery/index.html", "gallery/gelu.html", "reference/surgery.html"
TABLES, CHANGELOG = "activations.html", "changelog.html"
WAIT = 30  # seconds, for what the page does by itself


@pytest.fixture
def go(browser, address):
    """Open a page of the site as a first visitor; the console must have no error at the end."""

    def opened(page, scheme="light", width=1280, height=1000):
        driver = browser.driver
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        driver.get(address + "assets/icon.svg")
        driver.execute_script("localStorage.clear()")
        driver.get_log("browser")
        driver.get(address + page)
        until(lambda: driver.execute_script("return document.readyState") == "complete")
        return driver

    yield opened
    # Beside the picture that is opened first, Chromium asks for an icon of the whole address, and not always at once.
    assert [error for error in browser.errors() if f"{address}favicon.ico" not in error] == []


def until(ready):
    """Wait for what the page does, and return it."""
    end = time.monotonic() + WAIT
    while not (value := ready()):
        assert time.monotonic() < end, "the page did not come so far"
        time.sleep(0.05)
    return value


def all_of(driver, selector):
    return driver.find_elements("css selector", selector)


def scheme_of(driver):
    return driver.find_element("tag name", "body").get_attribute("data-md-color-scheme")


def test_no_link_is_broken_and_nothing_comes_from_elsewhere(site):
    report = check(site)
    assert report.checked > 5000
    assert report.broken == ()
    assert report.fetched == ()


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("ActivationSwap", "reference/callbacks.html"),
        ("gelu_tanh", "gallery/gelu_tanh.html"),
        ("int8", "quantization.html"),
    ],
)
@pytest.mark.parametrize("as_file", [False, True])
def test_search_finds_a_page(go, site, words, page, as_file):
    driver = go(START)
    if as_file:
        driver.get((site / START).as_uri())
    field = driver.find_element("css selector", "input[data-md-component=search-query]")
    field.click()
    field.send_keys(words)
    link = until(lambda: next(iter(all_of(driver, f".md-search-result__link[href*='{page}']")), None))
    driver.execute_script("arguments[0].click()", link)
    until(lambda: page in driver.current_url)


def test_the_gallery_leads_to_each_activation(go):
    driver = go(GALLERY)
    cards = all_of(driver, ".gallery a")
    assert [card.find_element("tag name", "code").text for card in cards] == list(names())
    assert all(card.get_attribute("href").endswith(f"/{name}.html") for card, name in zip(cards, names(), strict=True))
    cards[list(names()).index("gelu")].click()
    until(lambda: driver.current_url.endswith(GELU))
    shown = [image for image in all_of(driver, ".plots img") if image.is_displayed()]
    assert len(shown) == 3
    assert all(until(lambda image=image: image.get_property("naturalWidth")) > 0 for image in shown)
    assert len({image.location["y"] for image in shown}) == 1  # side by side


def test_dark_colours_are_chosen_by_system_and_by_hand(go):
    assert scheme_of(go(GELU, "dark")) == "slate"
    driver = go(GELU, "light")
    assert scheme_of(driver) == "default"
    next(label for label in all_of(driver, "form[data-md-component=palette] label") if label.is_displayed()).click()
    until(lambda: scheme_of(driver) == "slate")
    shown = [image.get_attribute("src") for image in all_of(driver, ".plots img") if image.is_displayed()]
    assert len(shown) == 3
    assert all("-dark.svg" in source for source in shown)
    background = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert max(map(int, re.findall(r"\d+", background)[:3])) < 60


def test_no_page_is_wider_than_a_phone(go, site, address):
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    pages = [page for page in pages if not page.startswith(("files/", "explorer/"))]
    assert len(pages) > 60
    widths = {}
    driver = go(START, width=390, height=844)
    for page in pages:
        driver.get(address + page)
        widths[page] = driver.execute_script("return document.documentElement.scrollWidth")
    assert {page: width for page, width in widths.items() if width > 390} == {}
    driver.get(address + START)
    cut = "return [...document.querySelectorAll('pre > code')].filter((code) => code.scrollWidth > code.clientWidth)"
    assert driver.execute_script(cut) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", [START, GALLERY, GELU, SURGERY, TABLES, CHANGELOG])
def test_axe_finds_nothing_serious(go, axe, page, scheme):
    driver = go(page, scheme)
    driver.execute_script(axe)
    violations = driver.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        "axe.run().then((result) => done(result.violations.map((v) => [v.impact, v.id, v.nodes.map((n) => n.html)])))"
    )
    assert [violation for violation in violations if violation[0] in {"serious", "critical"}] == []
