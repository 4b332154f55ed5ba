"""The copy that is exported computes what the module computes, with whatever hangs on it, or there is no file."""

import math

import pytest
import torch
from export_cases import gelu_net
from lightning.pytorch import Callback
from torch import nn

from lit_gelu.curvature.activation.recorder import ActivationRecorder
from lit_gelu.export import ExportError, OnnxPredictor, check_parity, export_onnx

X = torch.linspace(-2, 2, 18).reshape(3, 6)


def outputs_of(net):
    with torch.no_grad():
        return net.eval()(X)


def test_what_hooks_do_is_a_part_of_the_file(tmp_path):
    net, path = gelu_net(), tmp_path / "net.onnx"
    plain = outputs_of(net)
    net[0].register_forward_pre_hook(lambda _, args: (args[0] + 1,))
    net[1].register_forward_hook(lambda _, args, kwargs, y: 3 * y, with_kwargs=True)
    expected = outputs_of(net)
    assert not torch.allclose(plain, expected, atol=0.1)
    export_onnx(net, path, X)
    torch.testing.assert_close(OnnxPredictor(path)(X), expected, rtol=0, atol=1e-5)
    assert check_parity(net, path, input_sample=X).passed


class Scale(nn.Module):
    """Hooks a method of its own onto its part: in a copy it must be the copy's method."""

    def __init__(self):
        super().__init__()
        self.scale, self.part = nn.Parameter(torch.tensor(2.0)), nn.GELU()
        self.part.register_forward_hook(self.scaled)

    def scaled(self, module, args, y):
        return self.scale * y

    def forward(self, x):
        return self.part(x)


def test_a_hook_that_is_a_method_of_the_module_becomes_the_copys(tmp_path):
    net, path = Scale(), tmp_path / "net.onnx"
    export_onnx(net, path, X, dtype="fp16")  # the module's own float32 scale would make the output float32
    assert check_parity(net, path, input_sample=X).passed
    assert OnnxPredictor(path)(X.half()).dtype == torch.float16
    torch.testing.assert_close(OnnxPredictor(path)(X.half()).float(), 2 * nn.GELU()(X), rtol=1e-3, atol=1e-3)


class Watcher(Callback):
    def watch(self, *_):
        pytest.fail("a callback's hook ran")


def test_hooks_that_watch_a_training_see_nothing_of_it(tmp_path):
    net, path = gelu_net(), tmp_path / "net.onnx"
    recorder = ActivationRecorder({"1": net[1]})
    net[0].register_forward_hook(Watcher().watch)
    net[0].register_forward_hook(lambda *_: None)
    order = list(net[0]._forward_hooks)
    recorder.start()
    export_onnx(net, path, X)
    check_parity(net, path)
    recorder.stop()
    assert math.isnan(recorder.statistics()["1"]["mean"])
    assert list(net[0]._forward_hooks) == order


class Forgetful(nn.Module):
    """Is changed by being copied, as torch.nn.TransformerDecoderLayer with a module as activation is."""

    def __init__(self, change):
        super().__init__()
        self.linear, self.change, self.many = nn.Linear(6, 3), change, False

    def __setstate__(self, state):
        super().__setstate__(state)
        self.__dict__.update(self.change)

    factor, offset = 1.0, 0

    def forward(self, x):
        y = self.factor * self.linear(x)
        return (y, y) if self.many else {"y": y, "place": y.argmax(1) + self.offset}


@pytest.mark.parametrize("change", [{"factor": 1.01}, {"factor": float("nan")}, {"offset": 1}, {"many": True}], ids=str)
def test_a_module_that_is_another_one_when_it_is_copied(tmp_path, change):
    path = tmp_path / "net.onnx"
    path.write_bytes(b"what was there")
    with pytest.raises(ExportError):
        export_onnx(Forgetful(change), path, X)
    assert path.read_bytes() == b"what was there"
    export_onnx(Forgetful({}), path, X)
    with pytest.raises(ExportError):
        check_parity(Forgetful(change), path, input_sample=X)
