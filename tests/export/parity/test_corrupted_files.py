"""A proof must be able to fail: every corruption of the table is caught, or does no harm beyond the stated limit."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from corrupted_nets import exported
from corruptions import TABLE

FILES = ("mnist32", "mnist16", "tokens", "scales", "norm", "int8")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The six files, each exported when it is first asked for."""
    folder, made = tmp_path_factory.mktemp("corrupted"), {}

    def of(name):
        if name not in made:
            made[name] = exported(name, folder)
        return made[name]

    return of


def test_the_table_is_large_enough():
    assert len(TABLE) >= 40
    assert {entry.file for entry in TABLE} == set(FILES)
    assert len({(entry.file, entry.name) for entry in TABLE}) == len(TABLE)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", FILES)
def test_the_file_as_it_was_exported_passes(files, name, tmp_path):
    onnx.save(files(name).graph, tmp_path / "net.onnx")
    report = files(name).check(tmp_path / "net.onnx")
    assert report.passed
    assert not report.faults


def corrupted(original, entry, path):
    model = onnx.ModelProto()
    model.CopyFrom(original.graph)
    entry.change(model)
    assert model.SerializeToString(deterministic=True) != original.graph.SerializeToString(deterministic=True)
    onnx.save(model, path)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("entry", [e for e in TABLE if e.caught], ids=lambda e: f"{e.file}: {e.name}")
def test_a_corruption_is_caught(files, entry, tmp_path):
    original, path = files(entry.file), tmp_path / "net.onnx"
    corrupted(original, entry, path)
    assert not original.check(path).passed


def true_harm(original, path):
    """The largest error at an index of the last dimension, in units of what it is in float64, on inputs of its own."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    types = {"tensor(float16)": torch.float16, "tensor(float)": torch.float32}
    feed = {
        value.name: x.to(types.get(value.type, x.dtype))
        for value, x in zip(session.get_inputs(), original.real, strict=True)
    }
    y = session.run(None, {name: x.numpy() for name, x in feed.items()})
    net, inputs = original.net.double(), [x.double() if x.is_floating_point() else x for x in feed.values()]
    try:
        with torch.no_grad():
            result = net(*inputs)
    finally:
        net.float()
    exact = [result] if isinstance(result, torch.Tensor) else list(getattr(result, "values", lambda: result)())
    harms = []
    for a, tensor in zip(y, exact, strict=True):
        b = tensor.numpy()
        others = tuple(range(b.ndim - 1))
        harms.append((np.abs(a - b).max(others) / np.abs(b).max(others)).max())
    return max(harms), y[0], exact[0].numpy()


def stated_limit(report):
    """What the report allows an index to be off by, in units of its own size."""
    rows = [row for row in report.rows if row.gating and row.index and row.output]
    return max(row.index_limit / row.index_scale for row in rows)


@pytest.mark.parametrize("entry", [e for e in TABLE if not e.caught], ids=lambda e: f"{e.file}: {e.name}")
def test_what_is_not_caught_does_no_harm_beyond_the_stated_limit(files, entry, tmp_path):
    original, path = files(entry.file), tmp_path / "net.onnx"
    corrupted(original, entry, path)
    report = original.check(path)
    assert report.passed
    harm, y, exact = true_harm(original, path)
    if entry.file == "int8":  # whose limit is the share of rows with another largest logit
        assert (y.argmax(1) != exact.argmax(1)).mean() <= report.criteria[0].limit
    else:
        assert harm <= stated_limit(report)
