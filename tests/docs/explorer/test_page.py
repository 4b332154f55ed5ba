"""The explorer as a person uses it, in Chromium: controls redraw, the address keeps the view, everybody can use it."""

from pathlib import Path

import pytest

from lit_gelu import activations

pytestmark = pytest.mark.full

AXE = Path(__file__).parent / "axe" / "node_modules" / "axe-core" / "axe.min.js"
VIEW = "#a=swish&a.beta=2.5&b=gaussian_gelu&b.sigma=0.5&x=-0.75&mean=0.5&std=2"
WIDTHS = {"wide": (1200, False), "tablet": (760, True), "phone": (360, True)}


@pytest.fixture
def width(page):
    """Set the size of the window, for one test."""

    def resize(name):
        across, mobile = WIDTHS[name]
        size = {"width": across, "height": 800, "deviceScaleFactor": 1, "mobile": mobile}
        page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    yield resize
    page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def rounds(page):
    return int(page.driver.execute_script("return document.body.dataset.ready"))


def wait(page, condition):
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(page.driver, 60, 0.05).until(lambda _: condition())


def lines(page, figure, side):
    return page.driver.execute_script(f"return document.querySelector('#{figure} path.line.{side}').getAttribute('d')")


def numbers(page, table):
    """Return a table's rows: its name, then the numbers of A, B and maybe others."""
    rows = page.driver.execute_script(
        f"return Array.from(document.getElementById('{table}').tBodies[0].rows, (row) => "
        "[row.cells[0].textContent, ...Array.from(row.cells).slice(1).map((cell) => cell.dataset.value)])"
    )
    return {name: [float(value) for value in values] for name, *values in rows}


def named(page, name):
    return page.driver.find_element("css selector", f"[name='{name}']")


def test_a_slider_that_a_key_moves_redraws_and_writes_the_address(page, explorer):
    from selenium.webdriver.common.keys import Keys

    page.open(f"{explorer}#a=swish&b=relu")
    before, drawn = lines(page, "plot-value", "a"), rounds(page)
    forward = numbers(page, "gains")["forward gain"]
    slider = named(page, "a.beta")
    slider.send_keys(Keys.ARROW_RIGHT)
    wait(page, lambda: rounds(page) > drawn and lines(page, "plot-value", "a") != before)
    beta = float(named(page, "a.beta-number").get_attribute("value"))
    assert 1.0 < beta < 1.1
    assert slider.get_attribute("aria-valuetext") == named(page, "a.beta-number").get_attribute("value")
    wait(page, lambda: f"a.beta={beta:g}" in page.driver.current_url)
    wait(page, lambda: numbers(page, "gains")["forward gain"] != forward)
    exact = activations.gain(f"swish(beta={beta})")
    assert numbers(page, "gains")["forward gain"] == pytest.approx([exact, forward[1]], rel=1e-6)


def test_the_address_keeps_the_view(page, explorer):
    page.open(explorer + VIEW)
    first = {figure: lines(page, figure, "b") for figure in ("plot-value", "plot-second", "plot-density")}
    named(page, "x").send_keys("\ue014")  # so that the page writes its address itself
    wait(page, lambda: "x=-0.74" in page.driver.current_url)
    written = page.driver.current_url
    page.driver.refresh()
    wait(page, lambda: page.driver.execute_script("return document.body.dataset.ready"))
    assert page.driver.current_url == written
    assert {figure: lines(page, figure, "b") for figure in first} == first
    assert named(page, "a").get_attribute("value") == "swish"
    assert named(page, "b.sigma-number").get_attribute("value") == "0.5"


@pytest.mark.parametrize("size", WIDTHS)
def test_nothing_is_wider_than_the_window(page, explorer, width, size):
    width(size)
    page.open(explorer + VIEW)
    across = WIDTHS[size][0]
    assert page.driver.execute_script("return document.documentElement.scrollWidth") <= across
    boxes = page.driver.execute_script(
        "return Array.from(document.querySelectorAll('input, select, button, figure, table'), (each) => "
        "each.getBoundingClientRect()).map((box) => [box.left, box.right])"
    )
    assert len(boxes) > 20
    assert all(left >= 0 and right <= across for left, right in boxes)


@pytest.mark.parametrize("size", WIDTHS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(page, explorer, width, size, theme):
    if not AXE.is_file():
        pytest.skip("no axe-core in tests/docs/explorer/axe/node_modules: `make browser` installs it")
    media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    width(size)
    page.open(explorer + VIEW)
    assert page.driver.execute_script("return document.documentElement.dataset.theme") == theme
    page.driver.execute_script(AXE.read_text())
    faults = page.run("return (await axe.run()).violations.map((each) => [each.id, each.impact, each.nodes[0].html])")
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert [each for each in faults if each[1] in {"serious", "critical"}] == []
