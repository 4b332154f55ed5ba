"""Folders of loggers: what is found, what is missing in plain words, and what is none."""

import math
import sys

import pytest
from torch.utils.tensorboard import SummaryWriter

from lit_gelu.report import ReportSourceError, SwapChange
from lit_gelu.report.log_folder import read_log_folder

CSV = "epoch,step,train_loss\n0,0,2.5\n0,1,1.5\n"
BOMB = "a: &a [x, x]\nb: &b [*a, *a]\n" + "".join(f"c{i}: &c{i} [*b, *b]\n" for i in range(9))


def log(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_text(content)
    return folder


def test_curves_settings_and_swaps(tmp_path):
    yaml = "activation: relu\nactivation_swap/step_3/net.1: relu -> gelu(approximate='tanh')\n"
    log(tmp_path / "version_0", metrics_csv=CSV, hparams_yaml=yaml)
    found = read_log_folder(tmp_path)  # the only run below
    assert [curve.name for curve in found.curves] == ["epoch", "train_loss"]
    assert found.configuration == {"Hyper-parameters": {"activation": "relu"}}
    (swap,) = found.swaps
    assert (swap.step, swap.changes) == (3, (SwapChange("net.1", "relu", "gelu(approximate='tanh')"),))
    assert found.missing == ()


def test_what_is_missing_is_said(tmp_path):
    (tmp_path / "last.ckpt").write_bytes(b"")
    (tmp_path / "hparams.yaml").write_text("a: !!python/object/apply:os.system [touch ran]")
    found = read_log_folder(tmp_path)
    assert found.checkpoints == (tmp_path / "last.ckpt",)
    assert any(line.startswith("Curves: no logged values") for line in found.missing)
    assert any("no YAML of plain data" in line for line in found.missing)


@pytest.mark.parametrize("yaml", [BOMB, "[" * 1200, "- a", "", "a: 2020-99-99", "\x00"])
def test_yaml_of_any_content(yaml, tmp_path):
    found = read_log_folder(log(tmp_path, metrics_csv=CSV, hparams_yaml=yaml))
    assert len(str(found.configuration)) < 10_000


def test_several_runs_are_named(tmp_path):
    for name in "ab":
        log(tmp_path / name, metrics_csv=CSV)
    with pytest.raises(ReportSourceError, match=r"2 runs. Give one of them: .*a', .*b'"):
        read_log_folder(tmp_path)


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(ReportSourceError, match=r"nothing of a run: no metrics\.csv"):
        read_log_folder(tmp_path)
    with pytest.raises(ReportSourceError, match="is no folder"):
        read_log_folder(tmp_path / "none")


def test_event_files_of_tensorboard(tmp_path):
    """Written by torch's own writer, as Lightning's TensorBoardLogger uses it."""
    with SummaryWriter(tmp_path) as writer:
        for step, loss in enumerate((2.5, float("nan"), 0.5)):
            writer.add_scalar("train_loss", loss, step)
        writer.add_text("activation_swap/step_3/net.1", "relu -> gelu", 3)
    found = read_log_folder(tmp_path)
    (curve,) = found.curves
    assert (curve.name, curve.steps, curve.values[::2]) == ("train_loss", (0, 1, 2), (2.5, 0.5))
    assert math.isnan(curve.values[1])
    assert found.swaps[0].changes == (SwapChange("net.1", "relu", "gelu"),)


def test_event_files_without_tensorboard(tmp_path, monkeypatch):
    (tmp_path / "events.out.tfevents.1").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_accumulator", None)
    assert any("lit-gelu[tensorboard]" in line for line in read_log_folder(tmp_path).missing)
