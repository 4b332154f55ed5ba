"""What loggers, exporters and others leave in a folder: read as text and numbers, or said to be missing."""

import math
import shutil

import pytest
import torch
from export_cases import gelu_net

from lit_gelu.errors import ArgumentError, DataError
from lit_gelu.export import check_parity, export_onnx, write_proof
from lit_gelu.report.sources import exported_file, read_log_folder, read_metrics_csv

CSV = "epoch,step,train_loss,val_loss\n0,0,2.5,\n0,1,nan,\n0,2,inf,0.5\nq,s,1,1\n0,2,1.5,\n0,3"


def test_a_table_is_read_as_its_loggers_wrote_it(tmp_path):
    (tmp_path / "metrics.csv").write_text(CSV)
    curves = {curve.name: curve for curve in read_metrics_csv(tmp_path / "metrics.csv")}
    assert curves["train_loss"].steps == (0, 1, 2)
    assert curves["train_loss"].values == pytest.approx((2.5, math.nan, 1.5), nan_ok=True)
    assert (curves["val_loss"].steps, curves["val_loss"].values) == ((2,), (0.5,))


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"\0\0", b'step\n"' + b"x" * 200_000])
def test_what_is_no_table_is_refused(content, tmp_path):
    (tmp_path / "metrics.csv").write_bytes(content)
    with pytest.raises(DataError):
        read_metrics_csv(tmp_path / "metrics.csv")


def test_settings_and_swaps_of_a_folder_are_read_without_running_anything(tmp_path):
    (tmp_path / "metrics.csv").write_text(CSV)
    (tmp_path / "hparams.yaml").write_text("lr: 0.1\nactivation_swap/step_3/net.1: relu -> gelu\nnet: {a: [1, 2]}\n")
    (tmp_path / "config.yaml").write_text("a: !!python/object/apply:os.system ['touch ran']\n")
    report = read_log_folder(tmp_path)
    assert report.configuration == {"Hyper-parameters": {"lr": "0.1", "net.a": "[1, 2]"}}
    assert [(swap.step, swap.changes[0].old) for swap in report.swaps] == [(3, "relu")]
    assert any("config.yaml" in sentence for sentence in report.missing)
    assert report.steps == 3  # the last line is cut off behind its step


def test_a_folder_of_no_run_or_of_several_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(ArgumentError):
            read_log_folder(folder)
    for version in ("version_0", "version_1"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "metrics.csv").write_text(CSV)
    with pytest.raises(ArgumentError):
        read_log_folder(tmp_path)
    shutil.rmtree(tmp_path / "version_1")
    assert read_log_folder(tmp_path).curve("train_loss") is not None


def test_a_file_says_what_its_proof_found(tmp_path):
    path = tmp_path / "net.onnx"
    export_onnx(gelu_net(), path, torch.zeros(2, 6))
    assert exported_file(path).proof == "none"
    for seed, proof in ((0, "passed"), (1, "failed")):
        write_proof(check_parity(gelu_net(seed=seed), path, input_sample=torch.zeros(2, 6), strict=False), path, [])
        record = exported_file(path)
        assert (record.proof, record.provider, record.activations) == (proof, "CPUExecutionProvider", {"gelu": 2})
    path.write_bytes(b"no model")
    assert (exported_file(path).proof, exported_file(tmp_path / "none").proof) == ("unreadable", "unreadable")


def test_a_cell_that_is_no_number_costs_no_row_and_a_test_is_no_step(tmp_path):
    (tmp_path / "metrics.csv").write_text("epoch,step,swapped,val_loss,test_loss\n0,9,True,0.3,\n1,10,,,0.2\n")
    run = read_log_folder(tmp_path)
    assert run.steps == 10
    assert run.curve("val_loss").values == (0.3,)
