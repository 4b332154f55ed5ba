"""Golden vectors against mpmath's definitions of the tests, and scores of functions with planted errors."""

import json
import random

import mpmath
import numpy as np
import onnx
import pytest
import torch
from activation_oracles import CASES
from onnx import TensorProto, helper
from torch import nn

from lit_gelu import activations
from lit_gelu.activations import ActivationSpec, functional
from lit_gelu.audit import read_vectors, score_vectors, write_vectors
from lit_gelu.audit.enclosures import DEFINITIONS, definition_of
from lit_gelu.audit.vectors import FORMATS, Vectors, correctly_rounded
from lit_gelu.cli.main import main
from lit_gelu.errors import ArgumentError, AuditError, DataError
from lit_gelu.export import export_onnx

ENCLOSED = [case for case in CASES if case.name in DEFINITIONS and case.parameters.get("beta", 1.0) > 0]


def rounded(spec, patterns, dtype):
    """Return f, f' and f'' at bit patterns, each a tensor."""
    definition, form = definition_of(activations.registry.resolve(spec)), FORMATS[dtype]
    columns = np.array([correctly_rounded(definition, pattern, form) for pattern in patterns]).T
    return [form.numbers(column) for column in columns]


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("case", ENCLOSED, ids=str)
def test_no_number_is_nearer_to_the_exact_value(case, dtype):
    form, seeded = FORMATS[dtype], random.Random(f"{case} {dtype}")
    near = torch.tensor([*case.points, *(seeded.uniform(-12, 12) for _ in range(25))]).to(form.dtype)
    patterns = [pattern & (2 * form.sign - 1) for pattern in near.view(form.integers).tolist()]
    patterns += [sign + seeded.randrange(1, form.infinity) for sign in (0, form.sign) for _ in range(10)]
    values = rounded(ActivationSpec.of(case.name, **case.parameters), patterns, dtype)
    up, down = (torch.full((len(patterns),), end, dtype=form.dtype) for end in (torch.inf, -torch.inf))
    for order, column in enumerate(values):
        above, below = torch.nextafter(column.float(), up.float()), torch.nextafter(column.float(), down.float())
        if dtype != "float32":  # torch.nextafter takes no 16-bit numbers
            signed = column.view(form.integers).int()
            places = torch.where(signed < 0, -(signed & (form.sign - 1)), signed)
            above, below = (number_at(places + step, form) for step in (1, -1))
        for i, pattern in enumerate(patterns):
            exact = case.exact(form.numbers(np.array([pattern])).item())[order]
            value = column[i].item()
            with mpmath.workdps(60):
                if abs(exact) > torch.finfo(form.dtype).max:
                    assert abs(value) in {torch.finfo(form.dtype).max, np.inf}
                    continue
                error = abs(exact - value)
                others = [abs(exact - other[i].item()) for other in (above, below) if other[i].isfinite()]
                # The oracle has 40 digits at least.
                assert error <= min(others) * (1 + mpmath.mpf(10) ** -30), (case, pattern, order)


def number_at(places, form):
    """Return the numbers at places among all numbers of a dtype, 0 at place 0."""
    return form.numbers(torch.where(places < 0, form.sign - places, places).numpy())


@pytest.mark.parametrize("case", ENCLOSED, ids=str)
def test_infinities_have_the_limits_and_nan_stays(case):
    form = FORMATS["bfloat16"]
    patterns = [form.sign | form.infinity, form.infinity, form.infinity + 1]
    columns = rounded(ActivationSpec.of(case.name, **case.parameters), patterns, "bfloat16")
    for column, limits in zip(columns, case.limits, strict=True):
        assert column[:2].tolist() == torch.tensor(limits).bfloat16().tolist()
        assert column[2].isnan()


@pytest.mark.parametrize("name", DEFINITIONS)
def test_kinks_have_the_side_of_the_derivative(name):
    x = torch.tensor([-3.0, 0.0, 3.0, 6.0])
    _, first, second = rounded(name, x.view(torch.int32).numpy().view(np.uint32).tolist(), "float32")
    for order, column in ((1, first), (2, second)):
        torch.testing.assert_close(column, functional.derivative(name, x, order=order), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("spec", "patterns", "values"),
    [
        # gelu(x) = x/2 + x**2 / sqrt(2 pi) + ... is above x/2, which is the middle of two numbers here.
        ("gelu", [1, 3, 0x8001, 0x8003], [1, 2, 0x8000, 0x8001]),
        ("leaky_relu(negative_slope=0.5)", [0x8001, 0x8003, 0x8005], [0x8000, 0x8002, 0x8002]),  # ties go to even
        ("relu2", [0x7F00], [0x7F80]),  # (2**127)**2 is above the largest number
        ("gelu", [0x0000, 0x8000], [0x0000, 0x8000]),
        ("relu", [0x8000], [0x0000]),
        ("sigmoid", [0xFF00], [0x0000]),  # exp(-1.7e38)
        ("tanh", [0xC2C8, 0x42C8], [0xBF80, 0x3F80]),  # -100 and 100
    ],
)
def test_ties_zeros_and_ends_of_the_range(spec, patterns, values):
    definition = definition_of(activations.registry.resolve(spec))
    assert [correctly_rounded(definition, p, FORMATS["bfloat16"])[0] for p in patterns] == values


@pytest.fixture(scope="module")
def relu_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vectors")
    return folder / f"{write_vectors('relu', 'fp16', folder).name}.npz"


def test_both_files_hold_all_16_bit_inputs(relu_file):
    vectors = read_vectors(relu_file)
    assert vectors.x.tolist() == list(range(2**16))
    x, f = vectors.numbers("x"), vectors.numbers("f")
    assert torch.equal(f.nan_to_num(nan=-1), torch.relu(x).nan_to_num(nan=-1))
    plain = json.loads(relu_file.with_suffix(".json").read_text())
    assert {name: plain[name] for name in ("spec", "dtype")} == {"spec": "relu", "dtype": "float16"}
    assert all(plain[name] == getattr(vectors, name).tolist() for name in ("x", "f", "f1", "f2"))


@pytest.mark.full  # ten seconds
def test_float32_has_equally_many_inputs_of_every_binade_and_the_neighbours_of_kinks(tmp_path):
    vectors = write_vectors("relu6", "fp32", tmp_path)
    assert len(np.unique(vectors.x)) == 200_000
    counts = np.bincount(vectors.x >> 23, minlength=512)
    assert counts[:255].min() >= 385
    assert np.sort(counts)[-10:].max() <= 420
    six = np.float32(6).view(np.uint32)
    assert np.isin(np.arange(six - 8, six + 9), vectors.x).all()
    assert (vectors.numbers("f")[vectors.x == six]).tolist() == [6.0]


def test_a_score_counts_planted_errors(relu_file):
    def planted(x):
        y = torch.relu(x)
        bits = y.view(torch.int16)
        bits[x == 0.25] += 1
        bits[x == 0.5] += 7
        bits[x == 2.0] -= 300
        y[x == -4.0] = torch.nan
        y[y == 0] = -0.0
        return y

    result = score_vectors(planted, relu_file)
    report = result.to_dict()
    assert not result.passed
    counts = {name: count for name, count in report["histogram"].items() if count}
    assert counts == {"exact": 2**16 - 4, "1": 1, "3-10": 1, "101-1000": 1, "NaN": 1}
    assert (report["worst"]["x"], report["worst"]["ulp"], report["first_wrong"]["x"]) == (2.0, 300, 0.5)
    assert score_vectors(planted, relu_file, limit=0).to_dict()["first_wrong"]["x"] == 0.25
    assert (
        score_vectors(lambda x: torch.where(x.isnan(), x, (x > 0).half()), relu_file, order=1).to_dict()["wrong"] == 0
    )


def test_values_in_float64_are_rounded_once(tmp_path):
    def exact(x):
        x = x.double().clamp(min=-50.0)  # at -inf the product is NaN
        return x * torch.special.ndtr(x)

    assert score_vectors(exact, write_vectors("gelu", "fp16", tmp_path), limit=0).passed


@pytest.mark.parametrize("shape", [(7000,), (20, 300), ("rows", 3), ("rows", "columns")])
def test_an_onnx_file_of_any_size_is_scored(shape, relu_file, tmp_path, capsys):
    path = tmp_path / "relu.onnx"
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, shape) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    assert main(["vectors", "score", str(path), "--vectors", str(relu_file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["histogram"]["exact"] == 2**16


def test_the_command_scores_a_function_of_the_current_folder(relu_file, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_kernels_of_a_test.py").write_text("def relu(x):\n    return x.clamp(0, 1000)\n")
    words = ["vectors", "score", "own_kernels_of_a_test:relu", "--vectors", str(relu_file), "--plot", "e.png"]
    assert main(words) == 1
    assert "x = 1001: 1000 instead of 1001, 2 ulp" in capsys.readouterr().out  # neighbours are 0.5 apart
    assert (tmp_path / "e.png").stat().st_size > 5000
    assert main([*words[:-2], "--ulp", "30000"]) == 0


@pytest.mark.parametrize("target", ["torch", "torch:no_such_function", "no_such_module:f", ":f", "torch.nn:Linear"])
def test_a_target_that_is_none_is_a_mistake(target, relu_file):
    assert main(["vectors", "score", target, "--vectors", str(relu_file)]) == 2


@pytest.mark.full
def test_the_middle_of_two_numbers_is_refused(tmp_path):
    with pytest.raises(AuditError):  # elu's limit
        write_vectors("elu(alpha=1.01171875)", "bf16", tmp_path)


def test_what_cannot_be_taken_is_refused(relu_file, tmp_path):
    for spec, dtype in (("xielu", "bf16"), ("softplus(threshold=5.0)", "bf16"), ("gelu", "float64")):
        with pytest.raises(ArgumentError):
            write_vectors(spec, dtype, tmp_path)
    with pytest.raises(ArgumentError):
        score_vectors(torch.relu, relu_file, order=3)
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    for path in (tmp_path / "other.npz", tmp_path / "missing.npz", tmp_path):
        with pytest.raises(DataError):
            read_vectors(path)
    with pytest.raises(AuditError):
        score_vectors(lambda x: x.softmax(0), Vectors("relu", "float32", *[np.zeros(4, np.uint32)] * 4))
    path = tmp_path / "two.onnx"
    export_onnx(nn.Bilinear(2, 2, 2), path, (torch.zeros(1, 2), torch.zeros(1, 2)))
    assert main(["vectors", "score", str(path), "--vectors", str(relu_file)]) == 2
