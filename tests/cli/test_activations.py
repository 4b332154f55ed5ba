"""``lit-gelu activations``."""

import json
import subprocess
import sys
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
    ("arguments", "message"),
    [
        (["swihs"], "Did you mean 'swish'"),
        (["zz*"], "Registered:"),
        (["gelu(x=1)"], "It accepts: approximate"),
        (["gelu", "--plot", "x.nope"], "Use .png, .svg or .pdf"),
        (["gelu", "--plot", "x.png", "--interval", "3", "1"], "interval from left to right"),
        (["*", "--plot", "x.png"], "at most 10"),
    ],
)
def test_a_mistake_gives_exit_code_two_and_no_stack_trace(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["activations", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert list(tmp_path.iterdir()) == []


def test_it_needs_no_lightning():
    code = (
        "import sys; from lit_gelu.cli.main import main; main(['activations', 'gelu', '--json']);"
        "print([name for name in ('lightning', 'onnx', 'torchvision', 'matplotlib') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
