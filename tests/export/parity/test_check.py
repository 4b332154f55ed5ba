"""`check_parity`: what passes, what is caught."""

import copy
import math
import warnings

import pytest
import torch
from export_cases import gelu_net
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lit_gelu import activations, surgery
from lit_gelu.export import (
    ExportOptionError,
    ModelFileError,
    ModelInputError,
    ParityError,
    ProviderError,
    check_parity,
    export_onnx,
)

SAMPLE = torch.zeros(2, 6)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    net, path = gelu_net(), tmp_path_factory.mktemp("parity") / "net.onnx"
    export_onnx(net, path, SAMPLE)
    return net, path


@pytest.mark.parametrize("form", ["none", "tanh", "sigmoid"])
def test_the_gate_is_the_files_own_form_and_the_gap_is_reported(tmp_path, form):
    net, path = gelu_net(), tmp_path / "net.onnx"
    export_onnx(net, path, SAMPLE, approximate=form)
    report = check_parity(net, path)
    assert report.passed
    assert report.approximate == form
    gating = [row for row in report.rows if row.gating and not row.extreme]
    assert max(row.error for row in gating) < 5e-6
    gaps = [row for row in report.rows if row.comparison.startswith("approximation gap")]
    assert gaps
    assert not any(row.gating for row in gaps)
    # sup |gelu - form| is 0, 4.7e-4 and 2.0e-2; the net passes a part of it on.
    low, high = {"none": (0, 1e-6), "tanh": (1e-6, 1e-3), "sigmoid": (1e-3, 4e-2)}[form]
    assert low <= max(row.max_abs_error for row in gaps) <= high


def test_the_module_is_left_alone(exported):
    net, path = exported
    state, before = torch.get_rng_state(), copy.deepcopy(net.state_dict())
    loader = DataLoader(TensorDataset(torch.randn(8, 6)), batch_size=4, shuffle=True)
    state = torch.get_rng_state()
    check_parity(net, path, loader)
    assert net.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def test_changed_weights_are_caught(exported):
    net, path = exported
    changed = copy.deepcopy(net)
    with torch.no_grad():
        changed[5].bias[0] += 3e-5  # outputs are 0.3
    with pytest.raises(ParityError, match="does not compute what the module computes") as caught:
        check_parity(changed, path)
    report = caught.value.report
    assert not report.passed
    assert {row.inputs for row in report.failures} >= {"sample", "gaussian, batch 32", "zeros"}
    assert not check_parity(changed, path, strict=False).passed
    assert check_parity(changed, path, tolerance=1e-3).passed


class TestTolerance:
    def test_0_asks_for_exact_outputs_where_pytorch_is_exact(self, tmp_path):
        path, x = tmp_path / "exact.onnx", torch.ones(2, 3)
        net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
        for layer in (net[0], net[2]):
            layer.load_state_dict({"weight": torch.eye(3), "bias": torch.zeros(3)})  # nothing is ever rounded
        export_onnx(net, path, x)
        report = check_parity(net, path, input_sample=x, tolerance=0.0)
        assert {row.limit for row in report.rows if row.gating} == {0.0}
        with torch.no_grad():
            net[2].weight *= 2
        with pytest.raises(ParityError, match=r"error 0.5 of the largest output \(limit 0\)") as caught:
            check_parity(net, path, input_sample=x, tolerance=0.0)
        assert caught.value.report.row("sample").excess == math.inf

    def test_0_allows_pytorchs_own_error_twice(self, exported):
        net, path = exported
        report = check_parity(net, path, tolerance=0.0, strict=False)
        assert all(2 * row.own <= row.limit < 1e-5 for row in report.rows if row.gating)

    @pytest.mark.parametrize("tolerance", [-1e-9, math.nan, math.inf, True, "1e-5", None])
    def test_what_no_error_can_be_compared_with_is_refused(self, tolerance, tmp_path):
        with pytest.raises(ExportOptionError, match=r"tolerance=.* is not accepted. Give a finite number from 0"):
            check_parity(gelu_net(), tmp_path / "not_read.onnx", tolerance=tolerance)


def test_another_form_of_gelu_is_caught_and_named(exported):
    net, path = exported
    other = copy.deepcopy(net)
    surgery.swap(other, {"*": "gelu(approximate='tanh')"})
    with pytest.raises(ParityError, match=r"gelu\(approximate='tanh'\) in the module is gelu in the file: 1, 4"):
        check_parity(other, path)


def test_a_changed_learned_parameter_is_caught(tmp_path):
    model = nn.Sequential(activations.create("swish(learnable=True)"))
    path = tmp_path / "swish.onnx"
    export_onnx(model, path, SAMPLE)
    with torch.no_grad():
        model[0].log_scale.add_(0.01)
    with pytest.raises(ParityError):
        check_parity(model, path)


def test_nan_is_a_failure(tmp_path):
    net, path = gelu_net(), tmp_path / "net.onnx"
    with torch.no_grad():
        net[5].weight[0, 0] = math.nan
    export_onnx(net, path, SAMPLE)
    report = check_parity(net, path, strict=False)
    assert not report.passed
    assert {row.inputs for row in report.failures} >= {"sample", "gaussian, batch 32"}
    assert all(row.nonfinite for row in report.failures)


def test_overflow_that_pytorch_shares_is_no_failure(tmp_path):
    """1e4 squared four times is infinite in float32 and not in float64."""
    model = nn.Sequential(*[activations.create("relu2") for _ in range(4)])
    path = tmp_path / "overflow.onnx"
    export_onnx(model, path, SAMPLE)
    report = check_parity(model, path, strict=False)
    extreme = [row for row in report.rows if row.inputs == "gaussian x 1e4"]
    assert [row.passed for row in extreme if row.gating] == [True]


def test_without_a_sample_one_is_made_from_the_file(exported):
    net, path = exported
    assert check_parity(net, path, input_sample=SAMPLE).passed
    assert check_parity(net, path).passed


def test_small_outputs_are_judged_by_their_size(tmp_path):
    """An error of 1e-9 is nothing where outputs are 1, and wrong in the first digits where they are 1e-6."""
    net, path = nn.Sequential(nn.GELU(), nn.Linear(6, 2, bias=False)), tmp_path / "net.onnx"
    with torch.no_grad():
        net[1].weight.mul_(1e-6)
    export_onnx(net, path, SAMPLE)
    assert check_parity(net, path).passed
    with torch.no_grad():
        net[1].weight.mul_(1.01)
    report = check_parity(net, path, strict=False)
    assert not report.passed
    assert report.row("gaussian, batch 32").max_abs_error < 1e-7
    assert report.row("gaussian, batch 32").error == pytest.approx(0.01 / 1.01, rel=0.01)


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.act = nn.Embedding(5, 4), nn.GELU()

    def forward(self, tokens):
        return self.act(self.table(tokens)).sum(1)


def test_a_module_in_float64_becomes_a_float32_file(tmp_path):
    net, path = gelu_net().double(), tmp_path / "net.onnx"
    export_onnx(net, path, SAMPLE.double())
    assert check_parity(net, path, torch.randn(5, 6).double()).passed


def test_token_indices_are_drawn_from_the_whole_table(tmp_path):
    path = tmp_path / "tokens.onnx"
    torch.manual_seed(0)
    model, sample = Tokens(), torch.tensor([[0, 4, 2]])
    export_onnx(model, path, sample)
    report = check_parity(model, path, input_sample=sample)
    assert {row.inputs for row in report.rows} == {
        "sample",
        "random, batch 32",
        "random, batch 1",
        "random, batch 2",
        "gelu",
    }
    assert not report.notes
    with torch.no_grad():
        model.table.weight[3] += 0.01  # which the sample does not hold
    report = check_parity(model, path, input_sample=sample, strict=False)
    assert report.row("sample").passed
    assert not report.row("random, batch 32").passed
    with pytest.raises(ModelInputError, match="give input_sample="):
        check_parity(model, path)


class Mixed(nn.Module):
    """Asks for float32 ahead of a layer, as embeddings of time steps do; in another dtype than that it fails."""

    def __init__(self):
        super().__init__()
        self.linear, self.act = nn.Linear(6, 3), nn.GELU()

    def forward(self, x):
        return self.act(self.linear(x.float() * torch.linspace(1, 2, 6)))


class OnlyFloat32(Mixed):
    """Fails in any other dtype, whatever is done about it."""

    def forward(self, x):
        if self.linear.weight.dtype != torch.float32:
            raise TypeError("float32 only")
        return super().forward(x)


def test_a_missing_float64_reference_is_said(tmp_path):
    path = tmp_path / "net.onnx"
    model = OnlyFloat32()
    export_onnx(model, path, SAMPLE)
    report = check_parity(model, path)
    assert report.passed
    assert any("no float64 reference" in note for note in report.notes)
    assert not any(row.comparison == "file vs PyTorch float64" for row in report.rows)


def test_a_module_that_asks_for_float32_is_compared_with_itself_in_float64(tmp_path):
    path = tmp_path / "net.onnx"
    model = Mixed()
    export_onnx(model, path, SAMPLE)
    report = check_parity(model, path)
    assert not any("reference" in note for note in report.notes)
    assert report.row("gaussian, batch 32", "file vs PyTorch float64").error < 1e-6


@pytest.mark.parametrize(("kind", "comparison"), [(Mixed, "float64"), (OnlyFloat32, "float32")])
def test_a_file_of_16_bits_is_compared_as_a_whole_though_its_module_fails_in_them(tmp_path, kind, comparison):
    path = tmp_path / "net.onnx"
    model = kind()
    export_onnx(model, path, SAMPLE, dtype="fp16", target="ort-cpu")
    report = check_parity(model, path)
    row = report.row("gaussian, batch 32", f"file vs PyTorch {comparison}")
    assert 0 < row.error <= row.limit < 5e-3
    assert any(note.startswith("PyTorch's own float16 is") for note in report.notes)
    with torch.no_grad():
        model.linear.weight += 0.05
    assert not check_parity(model, path, strict=False).row("sample", f"file vs PyTorch {comparison}").passed


def test_files_that_lit_gelu_did_not_write(tmp_path, exported):
    net, path = exported
    foreign = tmp_path / "foreign.onnx"
    program = torch.onnx.export(copy.deepcopy(net).eval(), (SAMPLE,), dynamo=True, verbose=False)
    program.save(foreign)
    with pytest.raises(ModelFileError, match="does not carry lit-gelu's metadata"):
        check_parity(net, foreign)
    with pytest.raises(ModelFileError, match="There is no file"):
        check_parity(net, tmp_path / "none.onnx")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ModelFileError, match="damaged"):
        check_parity(net, broken)


def test_a_sample_of_another_signature(exported):
    _, path = exported
    with pytest.raises(ModelInputError, match="The file's inputs are input, the sample gives x"):
        check_parity(OnlyFloat32(), path, input_sample=SAMPLE)


def test_an_unknown_provider(exported):
    net, path = exported
    with pytest.raises(ProviderError, match="Did you mean 'CPUExecutionProvider'"):
        check_parity(net, path, providers=["CPUExecutionProvder"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_provider_that_would_fall_back_without_a_word_is_an_error(exported):
    net, path = exported
    with pytest.raises(ProviderError):
        check_parity(net, path, providers=["CUDAExecutionProvider"])


class Standardised(nn.Module):
    """Takes no batch of one row, in evaluation mode either."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.GELU())

    def forward(self, x):
        return self.net(x)


def test_batches_that_the_module_does_not_take_are_left_out_with_a_note(tmp_path):
    path, sample = tmp_path / "net.onnx", torch.randn(3, 4)
    export_onnx(Standardised(), path, sample)
    report = check_parity(Standardised(), path, input_sample=sample)
    assert report.passed
    assert "gaussian, batch 1" not in {row.inputs for row in report.rows}
    (note,) = [note for note in report.notes if "was not tried" in note]
    assert note.startswith("gaussian, batch 1 was not tried: forward fails (Expected more than 1 value per channel")
    assert report.row("gaussian, batch 2").gating
    assert [layer.site for layer in report.layers] == ["net.2"]
    with pytest.raises(ModelInputError, match=r"does not take a batch of the data \(\[1, 4\]\): Expected more than 1"):
        check_parity(Standardised(), path, [sample, sample[:1]], sample)
    with pytest.raises(ModelInputError, match=r"forward fails on the input sample \(x \(1, 4\) torch.float32"):
        check_parity(Standardised(), path, None, sample[:1])


def test_a_module_that_takes_only_one_or_three_rows_is_compared_on_these(tmp_path):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.linear = nn.Linear(4, 2)

        def forward(self, x):
            if not torch.compiler.is_exporting() and x.shape[0] not in {1, 3}:
                raise ValueError("one or three rows")
            return nn.functional.silu(self.linear(x))

    path, sample = tmp_path / "net.onnx", torch.randn(3, 4)
    export_onnx(Odd(), path, sample)
    report = check_parity(Odd(), path, input_sample=sample)
    assert report.passed
    assert {row.inputs for row in report.rows if row.gating} >= {"sample", "gaussian, batch 1"}
    assert "gaussian, batch 32 was not tried: forward fails (one or three rows)." in report.notes


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (torch.randn(3, 5), r"Input 'input' has shape \(3, 5\), the file takes \(batch, 4\)"),
        (torch.randn(3, 2, 4), r"Input 'input' has shape \(3, 2, 4\), the file takes \(batch, 4\)"),
        (torch.ones(3, 4, dtype=torch.long), "Input 'input' is int64, the file takes float32. Convert it first"),
    ],
)
def test_a_sample_that_does_not_fit_the_file(tmp_path, sample, message):
    net, path = nn.Sequential(nn.Linear(4, 3), nn.GELU()), tmp_path / "net.onnx"
    export_onnx(net, path, torch.randn(3, 4))
    with pytest.raises(ModelInputError, match=message):
        check_parity(net, path, None, sample)
    net = nn.Sequential(nn.Linear(5, 3), nn.GELU())
    with pytest.raises(ModelInputError, match=r"Sequential.forward fails on the input sample \(input \(3, 4\)"):
        check_parity(net, path, None, torch.randn(3, 4))  # a sample of the file's, another module's file


def test_a_module_that_ends_in_a_cast_to_16_bit_is_compared_without_a_warning(tmp_path):
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.linear = nn.Linear(4, 8)

        def forward(self, x):
            return nn.functional.gelu(self.linear(x)).half()

    export_onnx(Half(), tmp_path / "net.onnx", torch.randn(3, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert check_parity(Half(), tmp_path / "net.onnx", input_sample=torch.randn(3, 4)).passed
