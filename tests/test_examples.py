"""The scripts in examples/ run as they stand, and print what they are there to show."""

import os
import re
from pathlib import Path

import pytest
from child_processes import run_warm
from triton_proto import parsed

EXAMPLES = Path(__file__).parents[1] / "examples"


def printed(name, folder, *arguments):
    """Run a script in an empty folder, without real data, and return what it prints."""
    environment = {**os.environ, "LIT_GELU_PLUGINS": "0", "CUDA_VISIBLE_DEVICES": "", "LIT_GELU_DATA": ""}
    return run_warm(EXAMPLES / name, *arguments, cwd=folder, env=environment).stdout


@pytest.mark.full
def test_own_module_swap(tmp_path):
    text = printed("own_module_swap.py", tmp_path)
    assert "blocks.0:gelu: gelu (activation), own_module_swap.py:" in text
    assert "blocks.1:gelu: gelu -> swish(learnable=True)" in text
    assert "New parameters: ['blocks.0.gelu_call.log_scale', 'blocks.1.gelu_call.log_scale']" in text
    assert "Calls of exact GELU left: 0" in text
    assert "As before after undo: True" in text


@pytest.mark.full
def test_custom_activation(tmp_path):
    text = printed("custom_activation.py", tmp_path)
    assert "f'(0) 1.0, largest slope 1.2500, convex: True" in text
    assert float(re.search(r"bent_identity\(amount=0\.25\): test error (\d+\.\d+)%", text)[1]) < 12
    assert "hidden.7.activation: bent_identity(amount=0.25), as torch decomposes it" in text
    assert text.rstrip().endswith("passed")
    assert (tmp_path / "runs/custom_activation.onnx").is_file()


@pytest.mark.full
def test_choose_activation(tmp_path):
    text = printed("choose_activation.py", tmp_path, "--epochs", "1", "--seeds", "2")
    assert "trained 8 runs side by side" in text
    assert "Nothing is decided: 2 seeds are too few for an interval." in text
    assert text.splitlines()[-1].startswith("runs/choose_activation: best.ckpt, ")


@pytest.mark.full
def test_timm_swap(tmp_path):
    text = printed("timm_swap.py", tmp_path)
    assert "before: {'silu(inplace=True)': 16, 'relu': 9, 'silu': 9}" in text
    assert "stages.2.1.transformer.0.attn:relu: relu -> gelu, call rewritten" in text
    assert "after: {'gelu': 34}" in text
    assert "in the file: {'Gelu': 34}" in text
    assert text.rstrip().endswith("passed")


@pytest.mark.full
def test_curvature_side_by_side(tmp_path):
    text = printed("curvature_side_by_side.py", tmp_path, "30")
    assert "on the bundled digits, at step 29" in text
    figures = dict(
        re.findall(r"^ +(\w+): top eigenvalue +(-?[\d.]+), E\|f''\| of the activations \d", text, re.MULTILINE)
    )
    assert figures.keys() == {"relu", "elu", "gelu"}
    assert all(float(value) > 1 for value in figures.values())
    assert (tmp_path / "runs/curvature_side_by_side/curvature.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.full
def test_export_and_serve(tmp_path):
    text = printed("export_and_serve.py", tmp_path, "--epochs", "12")
    assert "takes raw pixels (uint8): lit_gelu.data.digits.EnlargedDigits" in text
    assert "parity passed" in text
    assert float(re.search(r"360 requests from 4 threads: top-1 (\d+\.\d+)%", text)[1]) > 85
    assert re.search(r"latency: median \d+\.\d ms, 99 of 100 within \d+\.\d ms", text)
    folder = tmp_path / "runs/export_and_serve"
    assert (folder / "triton/digits/1/model.onnx").read_bytes() == (folder / "digits.onnx").read_bytes()
    assert parsed((folder / "triton/digits/config.pbtxt").read_text()).output[0].label_filename == "labels.txt"
    assert (folder / "triton/digits/labels.txt").read_text().split() == list("0123456789")
    assert (folder / "digits.parity.html").is_file()
