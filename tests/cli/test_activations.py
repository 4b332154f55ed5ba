"""``lit-gelu activations``."""

import json
from xml.etree import ElementTree as ET

import pytest

from lit_gelu import activations
from lit_gelu.cli.main import main


def test_the_table_lists_every_activation(capsys):
    assert main(["activations"]) == 0
    output = capsys.readouterr().out
    assert all(str(activations.resolve(name)) in output for name in activations.list_activations())


def test_json_is_plain_data(capsys):
    assert main(["activations", "gelu", "hard_swish", "--json"]) == 0
    gelu, hard_swish = json.loads(capsys.readouterr().out)
    assert gelu["range"] == [pytest.approx(-0.16997120747990366, abs=1e-15), "inf"]
    assert hard_swish["kinks"] == [[-3.0, -0.5], [3.0, -0.5]]


@pytest.mark.parametrize(
    "words",
    [
        "swihs", "zz*", "gelu(x=1)", "gelu --import nowhere_at_all", "compare gelu swihs", "compare gelu swiglu",
        "compare gelu silu --interval 3 1", "compare gelu silu --interval 3", "compare gelu", "plot gelu",
        "plot gelu -o x.png --derivatives 3", "plot gelu geglu -o x.png", "plot gelu -o x.nope", "plot * -o x.png",
        "plot -o x.png", "plot gelu -o x.png --interval 3 1",
    ],
)  # fmt: skip
def test_a_mistake_is_exit_code_two_and_leaves_nothing(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["activations", *words.split()]) == 2
    assert capsys.readouterr().err.startswith("lit-gelu activations")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("spec", "texts"),
    [
        ("elu(alpha=0.5)", ["left asymptote", "0, -0.5"]),
        ("swiglu", ["swiglu"]),
        ("gelu_new", ["gelu(approximate='tanh')", "gelu_tanh", "-0.170041", "arXiv 1606.08415", "lit-gelu"]),
        ("gelu", ["forward: 1.53353", "backward: 1.48111"]),
    ],
)
def test_one_is_described(spec, texts, capsys):
    assert main(["activations", spec]) == 0
    output = capsys.readouterr().out
    assert all(text in output for text in texts)


def test_compare_as_json(capsys):
    assert main(["activations", "compare", "relu", "leaky_relu", "--interval", "-2", "2", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["slope"]["stretches"] == [[-2.0, 0.0]]
    assert data["interval"] == [-2.0, 2.0]


@pytest.mark.parametrize(
    ("derivatives", "panels"), [([], 3), (["--derivatives", "1"], 1), (["--derivatives", "2", "0"], 2)]
)
def test_plot_draws_what_was_asked_for(derivatives, panels, tmp_path):
    path = tmp_path / "family.svg"
    names = ["gelu", "relu", "swish(beta=2)"]
    assert main(["activations", "plot", *names, "-o", str(path), "--interval", "-2", "5", *derivatives]) == 0
    groups = [element.get("id", "") for element in ET.parse(path).getroot().iter()]
    assert sum(name.startswith("axes_") for name in groups) == panels
