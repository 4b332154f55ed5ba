"""`export_onnx`: forms of GELU, what happens to the module, what is in the file, and what is refused."""

import copy
import json
from pathlib import Path

import functional_nets
import numpy as np
import onnx
import pytest
import torch
from export_cases import GELU_ERF, GELU_TANH, gelu_net, gelu_net_by_hand, operators_by_site
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune

from lit_gelu.errors import LitGeluError, NotAvailableYetError
from lit_gelu.export import (
    ExportError,
    ExportOptionError,
    ModelInputError,
    OnnxPredictor,
    check_parity,
    export_onnx,
    saving,
)
from lit_gelu.export.metadata import read_metadata

SAMPLE = torch.zeros(1, 6)
OPERATORS = {
    ("none", "native"): ["Gelu"],
    ("none", "primitives"): GELU_ERF,
    ("none", "contrib"): ["com.microsoft::Gelu"],
    ("tanh", "native"): ["Gelu"],
    ("tanh", "primitives"): GELU_TANH,
    ("tanh", "contrib"): ["com.microsoft::FastGelu"],
    ("sigmoid", "native"): ["Mul", "Sigmoid", "Mul"],
    ("sigmoid", "primitives"): ["Mul", "Sigmoid", "Mul"],
    ("sigmoid", "contrib"): ["com.microsoft::QuickGelu"],
}


@pytest.mark.parametrize(("form", "lowering"), OPERATORS)
def test_each_form_in_each_lowering_against_the_formula(tmp_path, form, lowering):
    net, path = gelu_net("gelu"), tmp_path / "net.onnx"
    report = export_onnx(net, path, SAMPLE, approximate=form, lowering=lowering)
    assert list(operators_by_site(path).values()) == [OPERATORS[form, lowering]] * 2
    assert [site.spec for site in report.sites] == [{"none": "gelu"}.get(form, f"gelu(approximate={form!r})")] * 2
    x = np.random.default_rng(0).normal(scale=3, size=(64, 6)).astype(np.float32)
    assert np.abs(OnnxPredictor(path)(x) - gelu_net_by_hand(net, x, form)).max() < 2e-6


@pytest.mark.parametrize("trained", ["gelu(approximate='tanh')", "gelu(approximate='sigmoid')"])
def test_every_form_becomes_the_chosen_one(tmp_path, trained):
    net, path = gelu_net(trained), tmp_path / "net.onnx"
    export_onnx(net, path, SAMPLE, approximate="exact")
    x = np.linspace(-4, 4, 60, dtype=np.float32).reshape(10, 6)
    assert np.abs(OnnxPredictor(path)(x) - gelu_net_by_hand(net, x, "none")).max() < 2e-6


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The small net with all options at their defaults."""
    path = tmp_path_factory.mktemp("exported") / "net.onnx"
    return export_onnx(gelu_net(), path, SAMPLE), path


def test_native_is_one_gelu_node_a_site(exported):
    report, _ = exported
    assert dict(report.census) == {"Gemm": 3, "Gelu": 2}
    assert report.activation_census == {"Gelu": 2}
    assert report.opset == 20
    assert "1: gelu -> Gelu (native, 1 call)" in str(report)


def test_the_module_is_left_alone(tmp_path):
    net = gelu_net()
    handle = net[1].register_forward_hook(lambda *_: pytest.fail("a hook of the original ran"))
    before, state, forward = copy.deepcopy(net.state_dict()), torch.get_rng_state(), net[1].__dict__.get("forward")
    modules = list(net.modules())
    export_onnx(net, tmp_path / "net.onnx", SAMPLE, approximate="tanh")
    assert net.training
    assert all(a is b for a, b in zip(net.modules(), modules, strict=True))
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert all(parameter.requires_grad for parameter in net.parameters())
    assert net[1].__dict__.get("forward") is forward
    assert net[1].approximate == "none"
    assert torch.equal(torch.get_rng_state(), state)
    assert len(net[1]._forward_hooks) == 1
    handle.remove()


class Classifier(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = gelu_net()
        self.example_input_array = torch.zeros(2, 6)

    def forward(self, features):
        return self.net(features)

    def training_step(self, batch, index):
        return self(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


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


def test_weights_that_a_hook_computes(tmp_path):
    net = gelu_net()
    prune.l1_unstructured(net[0], "weight", 0.5)
    prune.random_unstructured(net[5], "weight", 0.5)
    export_onnx(net, tmp_path / "net.onnx", SAMPLE)
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(2, 6)
    expected = net.eval()(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(OnnxPredictor(tmp_path / "net.onnx")(x), expected, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 3])
def test_the_batch_is_dynamic_whatever_the_sample(tmp_path, rows):
    net, path = gelu_net(), tmp_path / "net.onnx"
    export_onnx(net, path, torch.zeros(rows, 6))
    model = onnx.load(path)
    for value in (model.graph.input[0], model.graph.output[0]):
        assert value.type.tensor_type.shape.dim[0].dim_param == "batch"
    assert (model.graph.input[0].name, model.graph.output[0].name) == ("input", "output")
    assert [OnnxPredictor(path)(np.zeros((n, 6), np.float32)).shape for n in (1, 2, 7)] == [(1, 3), (2, 3), (7, 3)]


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.GELU()

    def forward(self, image, parts, scale: float = 1.0, *, mask=None):
        gated = self.act(image) * scale + parts["extra"]
        return {"logits": gated if mask is None else gated * mask, "parts": [image + 1]}


@pytest.mark.parametrize("rows", [1, 3])
def test_nested_inputs_and_outputs_have_names(tmp_path, rows):
    x, extra, mask = torch.randn(rows, 4), torch.randn(rows, 4), torch.ones(rows, 4)
    path = tmp_path / "two.onnx"
    sample = {"image": x, "parts": {"extra": extra}, "scale": 2.0, "mask": mask}
    export_onnx(TwoInputs(), path, sample)
    predictor = OnnxPredictor(path)
    assert predictor.input_names == ["image", "parts_extra", "mask"]
    assert predictor.output_names == ["logits", "parts_0"]
    shapes = [value.type.tensor_type.shape.dim[0].dim_param for value in onnx.load(path).graph.input]
    assert shapes == ["batch"] * 3
    assert check_parity(TwoInputs(), path, input_sample=sample).passed
    logits, _ = predictor(x, extra, mask=torch.zeros(rows, 4))
    assert torch.equal(logits, torch.zeros(rows, 4))


def test_a_tuple_is_positional_arguments(tmp_path):
    export_onnx(TwoInputs(), tmp_path / "two.onnx", (torch.randn(2, 4), {"extra": torch.randn(2, 4)}))
    assert OnnxPredictor(tmp_path / "two.onnx").input_names == ["image", "parts_extra"]


def test_nothing_of_this_machine_is_in_the_file(exported):
    _, path = exported
    content = path.read_bytes()
    import lit_gelu

    places = {
        str(path.parent),
        str(Path.cwd()),
        str(Path.home()),
        str(Path(lit_gelu.__file__).parent),
        str(Path(torch.__file__).parent),
    }
    for place in places - {"/"}:
        assert place.encode() not in content
    for trace in (b"stack_trace", b'File "', b".py", b"pkg.torch", b"site-packages"):
        assert trace not in content
    assert [file.name for file in path.parent.iterdir()] == ["net.onnx"]  # no .onnx.data beside it


def test_metadata_say_what_the_file_is(tmp_path):
    path = tmp_path / "net.onnx"
    report = export_onnx(Classifier(), path, approximate="sigmoid", lowering="contrib")
    properties = OnnxPredictor(path).metadata
    assert properties["lit_gelu.model_class"].endswith("test_exporter.Classifier")
    assert properties["lit_gelu.approximate"] == "sigmoid"
    assert (properties["lit_gelu.lowering"], properties["lit_gelu.opset"]) == ("contrib", "20")
    assert set(json.loads(properties["lit_gelu.versions"])) == {"lit-gelu", "torch", "onnx", "onnxscript"}
    sites = {site["site"]: site["spec"] for site in json.loads(properties["lit_gelu.sites"])}
    assert sites == dict.fromkeys(["net.1", "net.4"], "gelu(approximate='sigmoid')")
    assert read_metadata(properties, "file") == report.metadata


def test_the_checker_accepts_the_file(tmp_path):
    path = tmp_path / "net.onnx"
    export_onnx(gelu_net(), path, SAMPLE, lowering="contrib")
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("target", "tensorrt"),
        ("target", "ort-cpu"),
        ("dtype", torch.float16),
        ("dtype", "bf16"),
        ("policy", "fast"),
        ("opset", 18),
    ],
)
def test_what_is_not_available_yet_is_refused_by_name(tmp_path, option, value):
    with pytest.raises(NotAvailableYetError, match=f"not available yet: {option}="):
        export_onnx(gelu_net(), tmp_path / "net.onnx", SAMPLE, **{option: value})


@pytest.mark.parametrize(
    ("option", "value", "hint"),
    [
        ("approximate", "tahn", "Did you mean 'tanh'"),
        ("lowering", "primitive", "Did you mean 'primitives'"),
        ("target", "ort_cuda", "Did you mean 'ort-cuda'"),
        ("dtype", torch.int8, "Accepted: 'fp32', 'fp16', 'bf16'"),
        ("policy", "lenient", "Accepted: 'strict', 'fast'"),
        ("opset", "twenty", "Accepted: 20"),
        ("opset", True, "Accepted: 20"),
    ],
)
def test_unknown_values_name_what_is_accepted(tmp_path, option, value, hint):
    with pytest.raises(ExportOptionError, match=hint):
        export_onnx(gelu_net(), tmp_path / "net.onnx", SAMPLE, **{option: value})


def test_a_model_without_gelu_cannot_be_given_a_form(tmp_path):
    with pytest.raises(ExportOptionError, match=r"needs a GELU, and.*1: relu; 4: relu"):
        export_onnx(gelu_net("relu"), tmp_path / "net.onnx", SAMPLE, approximate="tanh")


class CallsFunction(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.GELU())

    def forward(self, x):
        return self.block(F.gelu(x))


class CallsOperator(CallsFunction):
    def forward(self, x):
        return self.block(torch.ops.aten.gelu(x))


def test_calls_of_functions_take_the_chosen_form(tmp_path):
    net, path = CallsFunction(), tmp_path / "net.onnx"
    report = export_onnx(net, path, SAMPLE, approximate="tanh")
    assert {site.site: site.spec for site in report.sites} == dict.fromkeys(
        ["block.0", "gelu_call"], "gelu(approximate='tanh')"
    )
    x = torch.linspace(-4, 4, 60).reshape(10, 6)
    expected = F.gelu(F.gelu(x, approximate="tanh"), approximate="tanh")
    assert np.abs(OnnxPredictor(path)(x.numpy()) - expected.numpy()).max() < 2e-6
    assert check_parity(net, path, input_sample=SAMPLE).passed
    assert torch.equal(net(x), F.gelu(F.gelu(x)))
    assert [name for name, _ in net.named_modules()] == ["", "block", "block.0"]


def test_a_gelu_that_cannot_take_the_chosen_form_is_refused(tmp_path):
    path = tmp_path / "net.onnx"
    with pytest.raises(ExportOptionError, match="not every GELU of ByTwoHelpers can be given that form"):
        export_onnx(functional_nets.ByTwoHelpers(), path, torch.zeros(1, 4), approximate="tanh")
    with pytest.raises(ExportOptionError, match="a GELU that is no site of the module has another form"):
        export_onnx(CallsOperator(), path, SAMPLE, approximate="tanh")
    export_onnx(functional_nets.ByTwoHelpers(), path, torch.zeros(1, 4), approximate="none")
    export_onnx(CallsOperator(), path, SAMPLE, approximate="none")


class DataDependent(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Random(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5, training=True)


class RandomInPython(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.Sigmoid()  # not 0 at the sample, which is

    def forward(self, x):
        return self.act(x) * float(np.random.default_rng().random())


class FrozenBatch(nn.Module):
    def forward(self, x):
        return x.reshape(int(x.shape[0]), -1)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (DataDependent(), "cannot translate DataDependent: Could not guard"),
        (Random(), r"Random draws random numbers in evaluation mode \(Dropout\)"),
        (RandomInPython(), r"RandomInPython draws random numbers in evaluation mode \(output\)"),
        (FrozenBatch(), "batch of x, output is fixed at the sample's 2 rows"),
    ],
)
def test_what_has_no_graph_is_refused_and_the_old_file_stays(tmp_path, model, message, capfd):
    path = tmp_path / "net.onnx"
    path.write_bytes(b"what was there")
    with pytest.raises(ExportError, match=message) as caught:
        export_onnx(model, path, SAMPLE)
    assert isinstance(caught.value, LitGeluError)
    assert caught.value.__cause__ is not None or not isinstance(model, DataDependent)
    assert path.read_bytes() == b"what was there"
    assert list(tmp_path.iterdir()) == [path]
    assert capfd.readouterr() == ("", "")  # torch's exporter prints graphs and logs its attempts


def test_a_sample_that_does_not_fit(tmp_path):
    path = tmp_path / "net.onnx"
    with pytest.raises(ModelInputError, match="has no example_input_array"):
        export_onnx(gelu_net(), path)
    with pytest.raises(ModelInputError, match=r"forward fails on the input sample \(input \(2, 5\)"):
        export_onnx(gelu_net(), path, torch.zeros(1, 5))
    with pytest.raises(ModelInputError, match=r"does not fit Sequential\.forward"):
        export_onnx(gelu_net(), path, (SAMPLE, SAMPLE))
    with pytest.raises(ModelInputError, match="first dimension is the batch"):
        export_onnx(gelu_net(), path, torch.tensor(1.0))
    with pytest.raises(ExportError, match=r"Only a torch\.nn\.Module"):
        export_onnx(F.gelu, path, SAMPLE)


def test_a_model_that_the_checker_refuses_is_not_written(tmp_path, monkeypatch):
    path = tmp_path / "net.onnx"
    path.write_bytes(b"what was there")

    def refuse(*_, **__):
        raise onnx.checker.ValidationError("no such operator")

    monkeypatch.setattr(onnx.checker, "check_model", refuse)
    with pytest.raises(ExportError, match="checker refuses"):
        export_onnx(gelu_net(), path, SAMPLE)
    assert path.read_bytes() == b"what was there"
    assert list(tmp_path.iterdir()) == [path]


def test_a_path_that_cannot_be_written(tmp_path):
    with pytest.raises(LitGeluError, match="it is a folder"):
        export_onnx(gelu_net(), tmp_path, SAMPLE)
    (tmp_path / "file").write_text("")
    with pytest.raises(LitGeluError, match="Cannot write"):
        export_onnx(gelu_net(), tmp_path / "file" / "net.onnx", SAMPLE)


def test_large_weights_go_to_a_file_of_their_own(tmp_path, monkeypatch):
    """Above protobuf's 2 GB, here made small."""
    monkeypatch.setattr(saving, "EXTERNAL_DATA_ABOVE", 1000)
    path = tmp_path / "net.onnx"
    export_onnx(gelu_net(), path, SAMPLE)
    (first,) = set(tmp_path.iterdir()) - {path}
    net = gelu_net(seed=1)
    export_onnx(net, path, SAMPLE)
    (second,) = set(tmp_path.iterdir()) - {path}
    assert first.name != second.name
    assert check_parity(net, path).passed
    monkeypatch.setattr(onnx.checker, "check_model", _refuse)
    with pytest.raises(ExportError):
        export_onnx(gelu_net(seed=2), path, SAMPLE)
    assert set(tmp_path.iterdir()) == {path, second}
    assert check_parity(net, path).passed


def _refuse(*_, **__):
    raise onnx.checker.ValidationError("refused")
