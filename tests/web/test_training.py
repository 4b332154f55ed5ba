"""What the page's net is trained on, drawings as drawing.js renders them, and how its confidence is calibrated."""

import sys

import pytest
import torch
import web_pages

from lit_gelu.data import DigitsData
from lit_gelu.tasks import MNISTClassifier


@pytest.fixture(scope="module", autouse=True)
def _beside_the_script():
    """The example's files find each other as those of a script do."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(web_pages.EXAMPLE)
        yield
    for name in {"calibration", "drawn", "drawn_data", "shapes"} - before:
        sys.modules.pop(name, None)


def one_stroke(x1, y1, x2, y2, width):
    import drawn

    return drawn.Drawings(torch.tensor([[[x1, y1, x2, y2]]]), torch.tensor([width]), torch.tensor([1]))


def test_levels_of_a_bar():
    """A bar 2 wide and 12 high with its round ends: cells of 1.5, of which it covers two thirds of two columns."""
    import drawn

    levels = drawn.levels(one_stroke(5.0, 1.0, 5.0, 11.0, 2.0))[0, 0]
    assert levels.shape == (8, 8)
    assert levels[1:-1, 3:5].unique().tolist() == [11]  # 16 * 2 / 3
    assert levels[:, :3].sum() == levels[:, 5:].sum() == 0


def test_drawings_stand_beside_the_scanned_digits():
    from drawn_data import DrawnData

    data, scanned = DrawnData(DigitsData(), drawn=30), DigitsData()
    for module in (data, scanned):
        module.setup("fit")
        module.setup("test")
    assert len(data.train_set) == len(scanned.train_set) + 300
    assert len(data.val_set) == len(scanned.val_set) + 30
    assert torch.equal(data.test_set.inputs, scanned.test_set.inputs)
    assert data.train_set.inputs.shape[1:] == (1, 28, 28)
    assert 0 <= data.train_set.inputs.min() < data.train_set.inputs.max() <= 1


@pytest.mark.parametrize("factor", [0.5, 2.0, 4.0])
def test_the_temperature_is_found(factor):
    """Labels are drawn from the softmax of the logits over the factor: that is the temperature."""
    from calibration import calibrate_

    torch.manual_seed(0)
    model, images = MNISTClassifier(hidden_layers=1).eval(), 4 * torch.rand(4000, 1, 28, 28)
    with torch.no_grad():
        model.output.weight *= 5
        logits = model(images)
    labels = torch.distributions.Categorical(logits=logits / factor).sample()
    assert calibrate_(model, images, labels) == pytest.approx(factor, rel=0.15)
    with torch.no_grad():
        after = model(images)
    assert torch.equal(after.argmax(1), logits.argmax(1))
    assert torch.allclose(after * factor, logits, rtol=0.15, atol=0.05)
