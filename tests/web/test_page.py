"""The page: mouse, finger, pen and keyboard draw; the bars are the net's probabilities of what was drawn."""

import numpy as np
import pytest
import torch
import web_pages

from lit_gelu.export import OnnxPredictor

pytestmark = pytest.mark.full


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
    read = []
    for strokes in web_pages.DIGITS.values():
        clear(page)
        page.draw(strokes)
        read.append(int(np.argmax(page.bars())))
    # The set is small, and its 7 has a crossbar. A picture that is turned, mirrored or not scaled is read by chance.
    assert sum(digit == number for digit, number in zip(read, web_pages.DIGITS, strict=True)) >= 8, read


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
