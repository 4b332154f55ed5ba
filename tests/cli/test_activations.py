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


def test_a_pattern_selects(capsys):
    assert main(["activations", "*elu"]) == 0
    output = capsys.readouterr().out
    assert "gaussian_gelu" in output
    assert "silu" not in output


def test_one_spec_is_described_with_its_other_names(capsys):
    assert main(["activations", "gelu_new"]) == 0
    output = capsys.readouterr().out
    for text in ("gelu_tanh", "quick_gelu", "-0.170040750571254", "arXiv 1606.08415", "lit-gelu"):
        assert (text in output) == (text != "quick_gelu")


def test_json_is_plain_data(capsys):
    assert main(["activations", "gelu", "hard_swish", "--json"]) == 0
    gelu, hard_swish = json.loads(capsys.readouterr().out)
    assert gelu["range"] == [pytest.approx(-0.16997120747990366, abs=1e-15), "inf"]
    assert hard_swish["kinks"] == [[-3.0, -0.5], [3.0, -0.5]]


def test_the_plot_shows_what_was_asked_for(tmp_path, capsys):
    path = tmp_path / "family.svg"
    assert main(["activations", "gelu", "relu", "swish(beta=2)", "--plot", str(path), "--interval", "-2", "5"]) == 0
    text = ET.tostring(ET.parse(path).getroot(), encoding="unicode")
    assert "<path" in text or ":path" in text
    assert str(path) in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "swihs", "zz*", "gelu(x=1)", "gelu --plot x.nope", "gelu --plot x.png --interval 3 1", "* --plot x.png",
        "compare gelu swihs", "compare gelu swiglu", "compare gelu silu --interval 3 1",
        "compare gelu silu --interval 3",
        "compare gelu silu --plot x.nope", "compare gelu", "plot gelu", "plot gelu -o x.png --derivatives 3",
        "plot gelu geglu -o x.png", "show", "show zz*", "show gelu --import nowhere_at_all",
    ],
)  # fmt: skip
def test_a_mistake_is_exit_code_two_and_leaves_nothing(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["activations", *words.split()]) == 2
    assert capsys.readouterr().err.startswith("lit-gelu activations")
    assert list(tmp_path.iterdir()) == []


def test_list_is_the_table_and_says_what_a_name_stands_for(capsys):
    assert main(["activations", "list"]) == 0
    output = capsys.readouterr().out
    assert all(name in output for name in activations.list_activations())
    assert "= gelu(approximate='tanh')" in output
    assert "geglu" in output  # no function of one number, and listed all the same


def test_list_is_a_table_even_of_one_and_as_json(capsys):
    assert main(["activations", "list", "gelu"]) == 0
    assert "1 activations" in capsys.readouterr().out
    assert main(["activations", "list", "hard_s*", "--json"]) == 0
    assert [row["spec"] for row in json.loads(capsys.readouterr().out)] == ["hard_sigmoid", "hard_swish"]


def test_an_activation_that_is_not_finite_at_minus_one_has_its_row(capsys):
    with activations.registry.scope():
        activations.register("logarithm")(lambda x: x.log())
        for command in ("list", "show"):
            assert main(["activations", command, "gelu", "logarithm"]) == 0
            output = capsys.readouterr().out
            assert "gelu" in output
            assert "logarithm" in output


def test_show_describes_each(capsys):
    assert main(["activations", "show", "elu(alpha=0.5)", "swiglu", "gelu"]) == 0
    output = capsys.readouterr().out
    for text in ("0 x -0.5 (left), 1 x +0 (right)", "swiglu", "forward 1.533530441", "backward 1.481114413"):
        assert text in output


def test_show_as_json_has_every_field(capsys):
    assert main(["activations", "show", "relu6", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["right_asymptote"] == [0.0, 6.0]
    assert row["gains"]["forward"] == pytest.approx(2**0.5, rel=1e-6)


def test_compare_prints_sizes_and_places(capsys):
    assert main(["activations", "compare", "gelu", "gelu_tanh"]) == 0
    output = capsys.readouterr().out
    for text in ("0.000473235520", "-2.698941386, 2.698941386", "0.0008684518", "0.0018647914"):
        assert text in output


def test_compare_as_json_and_as_a_plot(tmp_path, capsys):
    path = tmp_path / "difference.svg"
    arguments = ["relu", "leaky_relu", "--interval", "-2", "2", "--json", "--plot", str(path)]
    assert main(["activations", "compare", *arguments]) == 0
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    assert data["slope"]["stretches"] == [[-2.0, 0.0]]
    assert data["interval"] == [-2.0, 2.0]
    assert str(path) in captured.err
    assert ET.parse(path).getroot().tag.endswith("svg")


@pytest.mark.parametrize(
    ("derivatives", "panels"), [([], 3), (["--derivatives", "1"], 1), (["--derivatives", "2", "0"], 2)]
)
def test_plot_draws_what_was_asked_for(derivatives, panels, tmp_path):
    path = tmp_path / "family.svg"
    names = ["gelu", "relu", "swish(beta=2)"]
    assert main(["activations", "plot", *names, "-o", str(path), "--interval", "-2", "5", *derivatives]) == 0
    groups = [element.get("id", "") for element in ET.parse(path).getroot().iter()]
    assert sum(name.startswith("axes_") for name in groups) == panels
