"""What `export_onnx` does with the module: a copy in evaluation mode, and nothing to the module itself."""

import copy
import sys
import threading
import warnings

import numpy as np
import onnx
import torch
from export_cases import Classifier, gelu_net
from lightning.pytorch import Trainer
from torch import nn

from lit_gelu.export import OnnxPredictor, check_parity, export_onnx

SAMPLE = torch.zeros(1, 6)


def test_the_module_is_left_alone(tmp_path):
    net = gelu_net()
    handle = net[1].register_forward_hook(lambda *_: None)
    before, state, forward = copy.deepcopy(net.state_dict()), torch.get_rng_state(), net[1].__dict__.get("forward")
    modules, hooks = list(net.modules()), dict(net[1]._forward_hooks)
    export_onnx(net, tmp_path / "net.onnx", SAMPLE, approximate="tanh")
    assert net.training
    assert all(a is b for a, b in zip(net.modules(), modules, strict=True))
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert all(parameter.requires_grad for parameter in net.parameters())
    assert net[1].__dict__.get("forward") is forward
    assert net[1].approximate == "none"
    assert torch.equal(torch.get_rng_state(), state)
    assert net[1]._forward_hooks == hooks
    handle.remove()


class ExportsWhileTraining(Classifier):
    def on_train_end(self):
        assert self.training
        export_onnx(self, self.target)


def test_a_lightning_module_in_training_mode_with_a_trainer(tmp_path):
    """Lightning's own to_onnx writes live Dropout nodes and a frozen batch in this place."""
    model = ExportsWhileTraining()
    model.target = tmp_path / "net.onnx"
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = Trainer(max_steps=2, enable_model_summary=False, **options)
    trainer.fit(model, torch.utils.data.DataLoader(torch.randn(8, 6), 4))
    assert model.trainer is trainer
    assert "Dropout" not in {node.op_type for node in onnx.load(model.target).graph.node}
    predictor, x = OnnxPredictor(model.target), np.ones((5, 6), np.float32)
    assert predictor.input_names == ["features"]
    np.testing.assert_array_equal(predictor(x), predictor(x))
    assert check_parity(model, model.target).passed


def test_compiled_modules_are_unwrapped(tmp_path):
    net = gelu_net()
    net[4] = torch.compile(net[4], backend="eager")
    report = export_onnx(torch.compile(net, backend="eager"), tmp_path / "net.onnx", SAMPLE)
    assert [site.site for site in report.sites] == ["1", "4"]
    assert report.metadata.model_class == "torch.nn.modules.container.Sequential"


def test_exports_in_threads_leave_streams_and_filters_of_warnings_as_they_were(tmp_path):
    before = sys.stdout, sys.stderr, list(warnings.filters)
    nets = [nn.Sequential(nn.Linear(4, 3), nn.GELU()).eval() for _ in range(3)]
    threads = [
        threading.Thread(target=export_onnx, args=(net, tmp_path / f"{number}.onnx", torch.randn(2, 4)))
        for number, net in enumerate(nets)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (sys.stdout, sys.stderr) == before[:2]
    assert not [one for one in warnings.filters if one not in before[2] and one[0] == "ignore" and one[2] is Warning]
    assert len(list(tmp_path.glob("*.onnx"))) == 3
