"""Which figure decides, and which way."""

import pytest

from lit_gelu.choose import ChoiceArgumentError
from lit_gelu.choose.metric import metric_of

LOGGED = {"val": ["val_loss", "val_error", "val_acc"], "test": ["test_loss", "thing"]}


@pytest.mark.parametrize(
    ("name", "mode", "wanted"),
    [
        (None, None, ("val_error", "val", "min")),
        ("val_acc", None, ("val_acc", "val", "max")),
        ("val_acc", "min", ("val_acc", "val", "min")),
        ("test_loss", None, ("test_loss", "test", "min")),
        ("thing", "max", ("thing", "test", "max")),
    ],
)
def test_it_is_found(name, mode, wanted):
    found = metric_of(name, mode, LOGGED)
    assert (found.name, found.stage, found.mode) == wanted
    assert (found.badness(1.0) > found.badness(0.0)) == (found.mode == "min")


def test_the_loss_takes_the_place_of_the_error():
    assert metric_of(None, None, {"val": ["val_loss"], "test": []}).name == "val_loss"


@pytest.mark.parametrize(
    ("name", "mode", "logged", "said"),
    [
        ("val_eror", None, LOGGED, r"val_eror. is not logged.*val_acc, test_loss, thing. Give one of them as"),
        (None, None, {"val": ["val_acc"], "test": []}, r"neither val_error nor val_loss is logged"),
        (None, None, {"val": [], "test": []}, r"nothing: give the module a validation_step"),
        ("thing", None, LOGGED, r'"thing"|does not say what is better.*mode="max"'),
        ("val_loss", "least", LOGGED, r"mode='least' is not accepted"),
    ],
)
def test_it_is_refused(name, mode, logged, said):
    with pytest.raises(ChoiceArgumentError, match=said):
        metric_of(name, mode, logged)
