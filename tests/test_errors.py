"""ErrorContract: what is not accepted is refused in one of the package's classes, and the message says what to do."""

import pytest
import torch
from torch import nn

import lit_gelu as lg
from lit_gelu import errors
from lit_gelu.callbacks import ActivationCurvatureMonitor, ActivationSwap, LossCurvatureMonitor, load_from_checkpoint
from lit_gelu.curvature import activation_statistics
from lit_gelu.curvature.loss import MatrixOperator, hessian_operator, hutchinson_trace
from lit_gelu.data import DigitsData, MNISTData
from lit_gelu.errors import message_of, shown
from lit_gelu.export import OnnxPredictor, check_parity, export_onnx
from lit_gelu.tasks import MNISTClassifier

NET = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
X = torch.zeros(1, 3)


def on_a_file(call, content=b"no model"):
    """Return a call that is given a file with some content."""

    def with_file(folder):
        path = folder / "file"
        path.write_bytes(content)
        return call(path)

    return with_file


# From the call, given an empty folder, to the class of its error and what the message names.
CALLS = {
    "a name that nobody registered": (lambda _: lg.activations.create("geluu"), "UnknownActivationError", "geluu"),
    "a spec that is no text of one": (lambda _: lg.activations.create("gelu("), "SpecError", "gelu("),
    "a spec that is a number": (lambda _: lg.activations.info(3), "SpecError", "3"),
    "an order of derivative": (
        lambda _: lg.activations.functional.derivative("gelu", X, order=3),
        "ArgumentError",
        "3",
    ),
    "a kind of gain": (lambda _: lg.activations.gain("gelu", kind="up"), "ArgumentError", "up"),
    "a target that matches nothing": (lambda _: lg.surgery.swap(NET, {"encoder": "gelu"}), "SwapError", "encoder"),
    "statistics of no activation": (lambda _: activation_statistics("geluu", X), "UnknownActivationError", "geluu"),
    "one probe of a trace": (
        lambda _: hutchinson_trace(MatrixOperator(torch.eye(3)), 1, seed=0),
        "ArgumentError",
        "probes=1",
    ),
    "a loss that is no number": (
        lambda _: hessian_operator(lambda: NET(X), dict(NET.named_parameters())),
        "ArgumentError",
        "(1, 3)",
    ),
    "no trigger of a swap": (lambda _: ActivationSwap({"*": "gelu"}), "ArgumentError", "at_epoch"),
    "a monitor that never measures": (lambda _: ActivationCurvatureMonitor(0), "ArgumentError", "every_n_steps=0"),
    "an unknown quantity": (lambda _: LossCurvatureMonitor("sharpness"), "ArgumentError", "sharpness"),
    "a file that is no checkpoint": (
        on_a_file(lambda path: load_from_checkpoint(MNISTClassifier, path)),
        "CheckpointError",
        "file",
    ),
    "a file that is no model": (on_a_file(OnnxPredictor), "ModelFileError", "file"),
    "a missing model": (lambda folder: OnnxPredictor(folder / "net.onnx"), "ModelFileError", "net.onnx"),
    "no sample to trace with": (
        lambda folder: export_onnx(NET, folder / "net.onnx"),
        "ModelInputError",
        "input_sample",
    ),
    "parity with no model": (on_a_file(lambda path: check_parity(NET, path, input_sample=X)), "ModelFileError", "file"),
    "data that are not there": (lambda folder: MNISTData(root=folder, download=False).prepare_data(), "DataError", ""),
    "a batch of no examples": (lambda _: DigitsData(batch_size=0), "ArgumentError", "0"),
    "a task of no layers": (lambda _: MNISTClassifier("gelu", hidden_layers=-1), "ArgumentError", "-1"),
}
REMEDIES = ("give", "use", "accept", "takes one of", "write", "load", "download", "did you mean", "name", "read")


@pytest.mark.parametrize("name", CALLS)
def test_what_is_not_accepted_is_refused_with_a_remedy(name, tmp_path):
    call, cls, named = CALLS[name]
    with pytest.raises(getattr(errors, cls)) as caught:
        call(tmp_path)
    text = str(caught.value)
    assert named in text
    assert any(word in text.lower() for word in REMEDIES), text
    assert 20 < len(text) < 4000
    assert text.rstrip().endswith((".", "?", ")")), text


LONG = {
    "text": "x" * 100_000,
    "bytes": b"x" * 100_000,
    "number": 10**100_000,
    "lists": [[[[["x" * 1000] * 100]]]] * 100,
    "mapping": {"a" * 1000: "b" * 1000},
    "object": object(),
}


@pytest.mark.parametrize("name", LONG)
def test_whatever_is_shown_is_short(name):
    assert len(shown(LONG[name])) < 1000


@pytest.mark.parametrize("name", ["deep", "number"])
def test_an_error_that_cannot_be_printed_has_its_class_as_message(name):
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert message_of(KeyError({"deep": deep, "number": 10**100_000}[name])) == "KeyError"
