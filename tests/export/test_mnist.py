"""The paper's classifier, trained on the real MNIST, in every form and lowering: parity and the same classes."""

from pathlib import Path

import pytest
from child_processes import run_warm

from lit_gelu.cli.loading import load_model
from lit_gelu.export import check_parity, export_onnx

EXAMPLES = Path(__file__).parents[2] / "examples"
APPLYING = {
    "gelu": ["native", "primitives", "contrib"],
    "relu": ["native"],
    "elu": ["native", "primitives"],
}


@pytest.mark.full
@pytest.mark.realdata
@pytest.mark.parametrize("activation", APPLYING)
def test_trained_for_five_epochs_every_lowering_keeps_the_class_of_every_test_image(tmp_path, monkeypatch, activation):
    from lit_gelu.data import MNISTData

    monkeypatch.chdir(tmp_path)  # the example writes into runs/
    config = str(EXAMPLES / f"mnist_{activation}.yaml")
    options = ["--config", config, "--data.download", "false", "--trainer.enable_progress_bar", "false"]
    run_warm("-m", "lit_gelu", "fit", *options)
    (checkpoint,) = tmp_path.glob("runs/**/last.ckpt")
    model = load_model(str(checkpoint))
    for form in ["as_trained", "none", "sigmoid"] if activation == "gelu" else ["as_trained"]:
        for lowering in APPLYING[activation]:
            path = tmp_path / f"{form}-{lowering}.onnx"
            export_onnx(model, path, approximate=form, lowering=lowering)
            report = check_parity(model, path, MNISTData())
            (row,) = [row for row in report.rows if row.inputs == "data" and row.gating]
            assert row.count == 10_000
            assert row.top1_changes <= 1  # a near tie
            assert row.max_abs_error < 2.5e-5
