"""TIMITFrameClassifier: the paper's net, its optimizer, batches of sentences, checkpoints, export, the real sample."""

import csv
import math
import os
from pathlib import Path

import onnx
import pytest
import torch
from small_task import quiet_trainer
from timit_files import write_corpus
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from lit_gelu.cli.main import main
from lit_gelu.data import TIMITData
from lit_gelu.data.in_memory import whole_batch
from lit_gelu.errors import LitGeluError
from lit_gelu.export import check_parity, export_onnx
from lit_gelu.tasks import TaskInputError, TIMITFrameClassifier

EXAMPLE = Path(__file__).parents[2] / "examples" / "timit_sample.yaml"


def linears(model):
    return [module for module in model.modules() if isinstance(module, nn.Linear)]


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def small_data(tmp_path, **options):
    defaults = {"batch_size": 2, "cache": tmp_path / "kept", "allow_incomplete": True}
    return TIMITData(write_corpus(tmp_path), **{**defaults, **options})


@pytest.mark.parametrize(("outputs", "expected"), [(39, 17_453_095), (2048, 21_569_536)])
def test_the_parameter_counts_of_the_paper_and_of_its_code(outputs, expected):
    with torch.device("meta"):
        model = TIMITFrameClassifier(outputs=outputs)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


def test_shapes_at_each_layer_and_dropout():
    model, shapes = TIMITFrameClassifier(), []
    for linear in linears(model):
        linear.register_forward_hook(lambda _, inputs, outputs: shapes.append((inputs[0].shape, outputs.shape)))
    model(torch.rand(3, 286))
    hidden = ((3, 2048), (3, 2048))
    assert shapes == [((3, 286), (3, 2048)), hidden, hidden, hidden, hidden, ((3, 2048), (3, 39))]
    assert [layer.dropout.p for layer in model.hidden] == [0.5] * 5
    assert model.is_noisy
    assert not TIMITFrameClassifier(keep=1.0, width=8).is_noisy
    assert TIMITFrameClassifier("zero_identity_map", keep=1.0, width=8).is_noisy


def test_rows_have_length_one_and_biases_are_zero():
    for linear in linears(TIMITFrameClassifier()):
        torch.testing.assert_close(linear.weight.norm(dim=1), torch.ones(linear.out_features))
        assert not linear.bias.any()


@pytest.mark.parametrize(("activation", "second_moment"), [("relu", 0.5), ("gelu_tanh", None)])
def test_initial_pre_activations(activation, second_moment):
    """Unit rows give the inputs' root mean square back: E[f(s Z)^2] from layer to layer, here by quadrature."""
    torch.manual_seed(0)
    model, values = TIMITFrameClassifier(activation, keep=1.0), torch.randn(500, 286)
    grid = torch.linspace(-10, 10, 20001, dtype=torch.float64)
    weight = torch.exp(-grid.square() / 2) / math.sqrt(2 * math.pi) * (grid[1] - grid[0])
    expected = 1.0
    with torch.no_grad():
        for layer in model.hidden:
            pre_activations = layer.linear(values)
            found = pre_activations.square().mean().sqrt().item()
            assert found == pytest.approx(expected, rel=0.08)  # 2,048 directions against a mean that is not zero
            if second_moment is None:
                expected = math.sqrt(float((gelu_tanh(expected * grid).square() * weight).sum()))
            else:
                expected *= math.sqrt(second_moment)
            values = layer.activation(pre_activations)


def test_two_steps_of_adam_against_a_transcription_in_float64(tmp_path):
    """Kingma and Ba 2015, algorithm 1, on the net written out and both batches of whole sentences."""
    data = small_data(tmp_path)
    data.setup()
    samples = data.train_set
    batches = [samples.__getitems__([0, 1]), samples.__getitems__([2, 3])]
    batches = [(inputs.double(), labels) for inputs, labels in batches]
    torch.manual_seed(0)
    model = TIMITFrameClassifier(keep=1.0, width=32)
    weights = [parameter.detach().double().requires_grad_() for parameter in model.parameters()]
    moments = [(torch.zeros_like(weight), torch.zeros_like(weight)) for weight in weights]
    losses = []
    for step, (inputs, labels) in enumerate(batches, start=1):
        values = inputs
        for layer in range(5):
            values = gelu_tanh(values @ weights[2 * layer].T + weights[2 * layer + 1])
        logits = values @ weights[10].T + weights[11]
        loss = (logits.exp().sum(1).log() - logits[torch.arange(len(labels)), labels]).mean()
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, gradient, (m, v) in zip(weights, gradients, moments, strict=True):
                m.mul_(0.9).add_(0.1 * gradient)
                v.mul_(0.999).add_(0.001 * gradient**2)
                weight -= 1e-3 * (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-8)

    trainer = quiet_trainer(max_steps=2, precision="64-true", limit_val_batches=0)
    in_order = DataLoader(samples, batch_size=2, collate_fn=whole_batch)
    trainer.fit(model, in_order, data.val_dataloader())
    assert trainer.logged_metrics["train_loss"].item() == pytest.approx(losses[1], rel=1e-6)
    for ours, reference in zip(model.parameters(), weights, strict=True):
        torch.testing.assert_close(ours.detach(), reference.detach(), rtol=0, atol=1e-7)


def test_the_training_loss_is_measured_without_dropout_before_the_update(tmp_path):
    data = small_data(tmp_path, batch_size=4)
    model = TIMITFrameClassifier(width=32)
    data.setup()
    with torch.no_grad():
        before = functional.cross_entropy(model.eval()(data.train_set.inputs), data.train_set.labels).item()
    trainer = quiet_trainer(max_steps=1, limit_val_batches=0)
    trainer.fit(model.train(), datamodule=data)
    assert trainer.logged_metrics["train_loss"].item() == pytest.approx(before, rel=1e-5)


def test_errors_are_shares_of_frames_and_the_checkpoint_exports(tmp_path):
    torch.manual_seed(0)
    data = small_data(tmp_path, batch_size=1)
    model = TIMITFrameClassifier("elu", learning_rate=1e-4, width=16)
    trainer = quiet_trainer(max_epochs=1, enable_checkpointing=True, default_root_dir=tmp_path)
    trainer.fit(model, datamodule=data)
    assert set(trainer.callback_metrics) == {"train_loss", "val_loss", "val_error"}
    loaded = TIMITFrameClassifier.load_from_checkpoint(trainer.checkpoint_callback.best_model_path, weights_only=True)
    assert dict(model.hparams) == {
        "activation": "elu",
        "learning_rate": 1e-4,
        "keep": 0.5,
        "width": 16,
        "outputs": 39,
        "batch_means": False,
        "fused_optimizer": False,
        "noise": "global",
    }
    assert dict(loaded.hparams) == dict(model.hparams)
    (result,) = quiet_trainer().test(loaded, datamodule=data, verbose=False)
    with torch.no_grad():
        logits = model.eval()(data.test_set.inputs)
    wrong = [int(row.argmax() != label) for row, label in zip(logits, data.test_set.labels, strict=True)]
    assert len(wrong) == 14 + 17
    assert result["test_error"] == pytest.approx(sum(wrong) / 31)
    assert result["test_loss"] == pytest.approx(functional.cross_entropy(logits, data.test_set.labels).item(), rel=1e-5)
    export_onnx(loaded, tmp_path / "frames.onnx")
    assert check_parity(loaded, tmp_path / "frames.onnx", data).passed
    operators = {node.op_type for node in onnx.load(tmp_path / "frames.onnx").graph.node}
    assert not {name for name in operators if "Dropout" in name or "Random" in name}


def test_an_exported_file_that_takes_features_as_they_are_extracted(tmp_path):
    """The normalisation as a part of the graph: raw windows give the logits that normalised ones give the net."""
    data = small_data(tmp_path)
    data.setup()
    model = TIMITFrameClassifier(width=16).eval()
    whole = nn.Sequential(data.normalisation(), model).eval()
    module = data.normalisation()
    raw = data.test_set.inputs * module.deviation.repeat(11) + module.mean.repeat(11)
    with torch.no_grad():
        torch.testing.assert_close(whole(raw), model(data.test_set.inputs), rtol=1e-4, atol=1e-5)
    export_onnx(whole, tmp_path / "whole.onnx", raw[:2])
    assert check_parity(whole, tmp_path / "whole.onnx", raw).passed


def test_means_of_the_batches_means(tmp_path):
    """Sentences of 14 and 17 frames, one a batch: the mean of both means is not that of the 31 frames."""
    data = small_data(tmp_path, batch_size=1)
    torch.manual_seed(0)
    model = TIMITFrameClassifier(width=16, batch_means=True)
    (result,) = quiet_trainer().test(model, datamodule=data, verbose=False)
    with torch.no_grad():
        parts = [model.eval()(windows) for windows, _ in data.test_dataloader()]
    labels = [labels for _, labels in data.test_dataloader()]
    losses = [functional.cross_entropy(*part).item() for part in zip(parts, labels, strict=True)]
    errors = [(part.argmax(1) != label).float().mean().item() for part, label in zip(parts, labels, strict=True)]
    assert result["test_loss"] == pytest.approx(sum(losses) / 2, rel=1e-6)
    assert result["test_error"] == pytest.approx(sum(errors) / 2, rel=1e-6)


def test_2048_outputs_take_the_same_labels(tmp_path):
    data = small_data(tmp_path)
    trainer = quiet_trainer(max_epochs=1)
    trainer.fit(TIMITFrameClassifier(width=8, outputs=2048), datamodule=data)
    assert trainer.callback_metrics["val_loss"].item() == pytest.approx(math.log(2048), rel=0.1)


def test_the_zero_identity_map_alone(tmp_path):
    """Stochastic in training, x Phi(x) afterwards and in the exported graph, which has no random operator."""
    data = small_data(tmp_path)
    model = TIMITFrameClassifier("zero_identity_map", keep=1.0, width=16)
    quiet_trainer(max_epochs=1).fit(model, datamodule=data)
    export_onnx(model, tmp_path / "soi.onnx")
    assert check_parity(model, tmp_path / "soi.onnx", data).passed
    operators = {node.op_type for node in onnx.load(tmp_path / "soi.onnx").graph.node}
    assert not {name for name in operators if "Random" in name or "Bernoulli" in name}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate=0.0 is not accepted"),
        ({"keep": 0.0}, "keep=0.0 is not accepted"),
        ({"width": 0}, r"width=0 is not accepted\. Give an integer"),
        ({"outputs": 38}, r"outputs=38 is not accepted\. Give 39 \(the phones\) or more"),
        ({"activation": nn.GLU, "width": 16}, r"turns shape \[2, 16\] into \[2, 8\]"),
    ],
)
def test_refused_arguments(arguments, message):
    with pytest.raises(LitGeluError, match=message):
        TIMITFrameClassifier(**arguments)


@pytest.mark.parametrize(
    "inputs", [torch.zeros(2, 285), torch.zeros(2, 11, 26), torch.zeros(2, 286, dtype=torch.int64)]
)
def test_refused_windows(inputs):
    with pytest.raises(TaskInputError, match=r"given; accepted: \[frames, 286\], a floating dtype, 26 features of 11"):
        TIMITFrameClassifier(width=4)(inputs)


def fit_on_the_sample(tmp_path, monkeypatch, *options):
    """Run the example, and return the logged training losses and validation errors."""
    if not TIMITData().folder.is_dir():
        pytest.skip("LIT_GELU_DATA has no folder timit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setitem(os.environ, name, "0")  # seeding sets them; taken back at the end
    arguments = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", *options]
    assert main(["fit", "--config", str(EXAMPLE), *arguments]) == 0
    with (tmp_path / "runs/timit_sample/version_0/metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [[float(row[name]) for row in rows if row[name]] for name in ("train_loss", "val_error")]


@pytest.mark.full
@pytest.mark.realdata
def test_a_narrower_net_learns_on_the_real_sample(tmp_path, monkeypatch):
    """With logits near 0 the loss begins at log 39 = 3.66; a quarter of the frames is silence, the largest class."""
    losses, errors = fit_on_the_sample(tmp_path, monkeypatch, "--model.width=256", "--trainer.max_epochs=2")
    assert len(losses) == 2 * 12 // 4
    assert losses[0] < math.log(39)
    assert losses[-1] < 0.9 * losses[0]
    assert errors[-1] < 0.7


@pytest.mark.full
@pytest.mark.realdata
def test_the_example_as_it_stands_lowers_the_loss(tmp_path, monkeypatch):
    """Two of its ten epochs, with the paper's 2,048 units."""
    losses, errors = fit_on_the_sample(tmp_path, monkeypatch, "--trainer.max_epochs=2")
    assert len(losses) == 2 * 12 // 4
    assert losses[-1] < 0.7 * losses[0]
    assert errors[-1] < 0.7
