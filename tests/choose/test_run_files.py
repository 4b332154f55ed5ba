"""Runs on disk: what is read is what was written, and damage is no run."""

import math

import pytest
import torch

from lit_gelu.choose import ChoiceArgumentError
from lit_gelu.choose.metric import Metric
from lit_gelu.choose.run_files import RunFolder, TrainedRun, digest

ERROR = Metric("val_error", "val", "min")


def kept(folder, **changed):
    runs = RunFolder(folder, {"a": 1})
    run = TrainedRun("gelu", "gelu", 3, orders=["x"], initial="y", seconds=1.5, **changed)
    run.add_epoch(1, {"val_error": 0.5})
    run.add_epoch(2, {"val_error": math.nan})
    runs.checkpoint("gelu", "gelu", 3).write_bytes(b"weights")
    runs.keep(run)
    return runs, run


def test_a_run_is_read_as_it_was_written(tmp_path):
    runs, _ = kept(tmp_path, test={"test_error": math.inf})
    found = runs.find("gelu", "gelu", 3)
    assert (found.epochs, found.orders, found.initial, found.seconds) == ([1, 2], ["x"], "y", 1.5)
    assert found.curves["val_error"][0] == 0.5
    assert math.isnan(found.value(ERROR))
    assert found.value(Metric("test_error", "test", "min")) == math.inf
    assert runs.find("gelu", "gelu", 4) is runs.find("gelu", "relu", 3) is None


def test_a_run_without_weights_is_none(tmp_path):
    runs, _ = kept(tmp_path)
    runs.checkpoint("gelu", "gelu", 3).unlink()
    assert runs.find("gelu", "gelu", 3) is None


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\xff\xfe\x00",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"curves": 3, "test": {}, "epochs": [], "orders": [], "seconds": 1}',
        b'{"curves": {"val_error": ["x"]}, "test": {}, "epochs": [], "orders": [], "seconds": 1}',
        b'{"curves": {}, "test": {}, "epochs": [1e999], "orders": [], "seconds": 1}',
        b'{"curves": {}, "test": {}, "epochs": [], "orders": [], "seconds": 1, "label": "a", "spec": "a", "seed": 3}',
        b'{"curves": {}, "test": {}, "epochs": [], "orders": [], "seconds": 1, "run": "import os"}',
    ],
    ids=range(10),
)
def test_damage_is_no_run(tmp_path, damage):
    runs, _ = kept(tmp_path)
    (path,) = runs.runs.glob("gelu-*.json")
    path.write_bytes(damage)
    assert runs.find("gelu", "gelu", 3) is None


@pytest.mark.parametrize("damage", [b"", b"\xff", b"[" * 100_000, b"3", b'{"a": 1, "schema": 1}'])
def test_settings_that_are_damaged_or_of_an_earlier_schema_are_refused(tmp_path, damage):
    kept(tmp_path)
    RunFolder(tmp_path, {"a": 1})
    (tmp_path / "runs/settings.json").write_bytes(damage)
    with pytest.raises(ChoiceArgumentError, match=r"not known what they were made with.*Give another folder"):
        RunFolder(tmp_path, {"a": 1})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"a": {"b": "y", "c": "z"}}, r"with a\.b='x'; now it is 'y'\."),
        ({"a": {"c": "z"}}, r"with a\.b='x'; now it is None\."),
        ({"a": {"b": "x", "c": "z"}, "d": 3}, r"with d=None; now it is 3\."),
        ({"a": "all else"}, r"with a=\{.*\}; now it is 'all else'\."),
    ],
)
def test_a_refusal_names_what_differs(tmp_path, given, said):
    RunFolder(tmp_path, {"a": {"b": "x", "c": "z"}})
    with pytest.raises(ChoiceArgumentError, match=said):
        RunFolder(tmp_path, given)


def test_a_refusal_shows_long_texts_where_they_differ(tmp_path):
    RunFolder(tmp_path, {"a": "x" * 1000 + "one"})
    with pytest.raises(ChoiceArgumentError, match=r"a='\.\.\.x{40}one'; now it is '\.\.\.x{40}two'"):
        RunFolder(tmp_path, {"a": "x" * 1000 + "two"})


def test_labels_that_differ_in_what_no_file_name_holds(tmp_path):
    runs = RunFolder(tmp_path, {})
    paths = {runs.checkpoint(label, "gelu", 0) for label in ("a/b", "a b", "a_b", "../a b", "a" * 500)}
    assert len(paths) == 5
    assert {path.parent for path in paths} == {tmp_path / "runs"}


def test_digests_tell_tensors_apart():
    zeros = torch.zeros(3)
    assert digest(zeros) == digest(torch.zeros(3)) != digest(torch.ones(3))
    assert digest(zeros, zeros) != digest(zeros)
