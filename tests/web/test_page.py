"""The page: mouse, finger, pen and keyboard draw; the bars are the net's probabilities of what was drawn."""

from itertools import pairwise

import numpy as np
import pytest
import torch
import web_pages

from lit_gelu.export import OnnxPredictor

pytestmark = pytest.mark.full

SEVEN = [[(0.27, 0.17), (0.73, 0.17)], [(0.73, 0.17), (0.45, 0.86)]]  # in two strokes
DRAWINGS = [*web_pages.DIGITS.items(), (7, SEVEN)]


def clear(page):
    page.element("clear").click()
    assert page.bars() == [0] * 10
    assert page.element("answer").text == "Draw a digit from 0 to 9."


@pytest.mark.parametrize("pointer", ["mouse", "touch", "pen"])
def test_a_drawing_changes_the_bars_to_what_python_computes(page, digits, pointer):
    _, folder = digits
    assert page.bars() == [0] * 10
    page.draw(web_pages.DIGITS[0], pointer)
    bars = np.array(page.bars())
    levels = torch.tensor(page.pixels()).mul(16 / 255).round().to(torch.uint8).reshape(1, 1, 8, 8)
    assert levels.max() == 16
    predict = OnnxPredictor(folder / "site" / "model.onnx", providers=["CPUExecutionProvider"])
    assert np.abs(bars - predict(levels).double().softmax(dim=1).numpy()[0]).max() < 1e-4
    assert page.element("answer").text.startswith("This is a 0 (")
    clear(page)


def test_drawn_digits_are_recognised(page):
    for digit, strokes in DRAWINGS:
        page.element("clear").click()
        page.draw(strokes)
        assert int(np.argmax(page.bars())) == digit


def test_training_renders_a_drawing_as_the_page_does(page, monkeypatch):
    monkeypatch.syspath_prepend(web_pages.EXAMPLE)
    import drawn

    width = page.element("drawing").rect["width"]
    for digit, strokes in DRAWINGS:
        page.element("clear").click()
        page.draw(strokes)
        page.bars()
        points = [[(np.array(point) * width).round() for point in stroke] for stroke in strokes]
        pieces = [np.r_[a, b] for stroke in points for a, b in pairwise(stroke)]
        pen = torch.tensor([0.15 * width], dtype=torch.float32)
        one = drawn.Drawings(torch.tensor(np.array([pieces]), dtype=torch.float32), pen, torch.tensor([0]))
        levels = np.array(page.pixels()) * 16 / 255
        difference = np.abs(drawn.levels(one).numpy().ravel() - levels)
        # The page's box counts the palest pixel at an edge: up to one pixel more on each side.
        assert difference.mean() < 1, digit
        assert difference.max() < 5, digit


def test_the_keyboard_draws(page):
    keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
    canvas = page.element("drawing")
    canvas.send_keys(*[keys.ARROW_UP] * 9)
    assert page.bars() == [0] * 10  # the pen is up
    canvas.send_keys(" ", *[keys.ARROW_DOWN] * 18, " ")
    assert page.element("answer").text.startswith("This is a 1 (")
    assert sum(page.bars()) == pytest.approx(1)
    canvas.send_keys(keys.DELETE)
    assert page.bars() == [0] * 10


def test_every_control_has_a_name_and_is_reached_by_tab(page):
    keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
    reached = []
    for _ in range(3):
        page.driver.switch_to.active_element.send_keys(keys.TAB)
        reached.append(page.driver.switch_to.active_element.get_attribute("id"))
    assert reached == ["drawing", "clear", "backend"]
    named = [page.element(name) for name in (*reached, "input")]
    assert all(control.accessible_name for control in named)
    meters = page.driver.find_elements("css selector", "#bars meter")
    assert [meter.accessible_name for meter in meters] == [f"Probability of {digit}" for digit in range(10)]
    assert page.element("answer").get_attribute("aria-live") == "polite"
