"""Old names work for one release, and say what to write instead."""

import copy
import inspect
import warnings

import pytest

import lit_gelu
from lit_gelu.deprecation import (
    REMOVED_IN,
    LitGeluDeprecationWarning,
    renamed_arguments,
    renamed_attributes,
    renamed_names,
    warn_renamed,
)


class Monitor:
    @renamed_arguments(every="every_n_steps", log="logger")
    def __init__(self, every_n_steps: int = 1, *, logger: str = "") -> None:
        self.given = every_n_steps, logger


def test_an_argument_by_its_old_name():
    with pytest.warns(
        LitGeluDeprecationWarning, match=r"Monitor\(every=\) is deprecated .*: write every_n_steps="
    ) as caught:
        assert Monitor(every=5).given == (5, "")
    assert caught[0].filename == __file__, "the warning points at the caller's line"


def test_arguments_by_their_new_names_do_not_warn():
    assert Monitor(3, logger="csv").given == (3, "csv")


def test_both_names_at_once_are_refused_whatever_they_say():
    with pytest.raises(TypeError, match=r"every_n_steps= and every=, its old name\. Leave every= out"):
        Monitor(every=5, every_n_steps=5)


def test_what_is_no_argument_at_all_is_refused_as_python_does():
    with pytest.raises(TypeError, match="unexpected keyword"):
        Monitor(evry=5)


def test_the_signature_has_new_names_alone():
    assert list(inspect.signature(Monitor).parameters) == ["every_n_steps", "logger"]


def test_a_name_that_moved():
    find = renamed_names("somewhere", {"Old": "collections:OrderedDict"})
    with pytest.warns(
        LitGeluDeprecationWarning, match=r"somewhere\.Old is deprecated .*: write collections\.OrderedDict"
    ):
        assert find("Old") is __import__("collections").OrderedDict
    with pytest.raises(AttributeError, match="module 'somewhere' has no attribute 'Other'"):
        find("Other")


class Watcher:
    def __init__(self) -> None:
        self.settings = Monitor(7)

    __getattr__ = renamed_attributes(period="settings.given")


def test_an_attribute_that_moved():
    with pytest.warns(
        LitGeluDeprecationWarning, match=r"Watcher\.period is .*: write Watcher\.settings\.given"
    ) as caught:
        assert Watcher().period == (7, "")
    assert caught[0].filename == __file__
    with pytest.raises(AttributeError, match="'Watcher' object has no attribute 'other'"):
        _ = Watcher().other
    assert copy.deepcopy(Watcher()).settings.given == (7, "")


def test_python_shows_the_warning_to_people():
    """As Python's own filters are without options."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.resetwarnings()
        for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", category)
        warn_renamed("option --old", "--new")
    assert [str(each.message) for each in caught] == [
        f"option --old is deprecated and goes with lit-gelu {REMOVED_IN}: write --new."
    ]


def test_no_old_name_outlives_its_release():
    """When this fails, delete what calls `lit_gelu.deprecation`, then set REMOVED_IN to the release after."""
    here = tuple(int(part) for part in lit_gelu.__version__.split(".")[:2])
    assert here < tuple(int(part) for part in REMOVED_IN.split("."))
