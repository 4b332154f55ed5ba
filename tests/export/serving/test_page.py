"""docs/serving.md shows the configuration that its own call writes, and names what becomes of every tuned setting."""

import re
from pathlib import Path

import pytest
import torch

from lit_gelu.data import DigitsData
from lit_gelu.export import export_onnx
from lit_gelu.export.runtime.settings import ACCEPTED
from lit_gelu.export.serving.backend import backend_settings
from lit_gelu.tasks import MNISTClassifier

PAGE = (Path(__file__).parents[3] / "docs" / "serving.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_configuration_is_what_the_call_on_the_page_writes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    labels = [str(digit) for digit in range(10)]
    model = MNISTClassifier(hidden_layers=1)
    export_onnx(model, "digits.onnx", preprocessing=DigitsData().preprocessing(), labels=labels)
    (code,) = blocks("python")
    exec(compile(code, "docs/serving.md", "exec"), {})
    written = (tmp_path / "repository" / "digits" / "config.pbtxt").read_text(encoding="utf-8")
    assert blocks("protobuf") == [written]
    assert "repository/digits/1/model.onnx" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(ACCEPTED))
def test_every_setting_has_its_place_in_the_table(name):
    (row,) = (line for line in PAGE.splitlines() if line.startswith("| `") and f"`{name}`" in line.split("|")[1])
    value = {"graph_optimization_level": "basic", "cudnn_conv_algo_search": "DEFAULT"}.get(name, 1)
    found = [backend_settings(device, {name: value}, sixteen_bit=False) for device in ("cpu", "gpu")]
    said = row.split("|")[2]
    assert ("no name" in said) == all(settings.left_out for settings in found)
    assert ("accelerator `cuda`" in said) == (name in found[1].cuda)
    assert all(f"`{word}`" in said for word in found[1].parameters)
