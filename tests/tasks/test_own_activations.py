"""Activation classes of users go the whole way: trained, watched, swapped out and in, killed, exported, proved."""

import csv
import json
import logging
import os
import random
import signal
import tempfile
import warnings

import pytest
import torch
from child_processes import run_forked
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from own_activations import OWN
from torch import nn

from lit_gelu import activations, surgery
from lit_gelu.callbacks import (
    ActivationCurvatureMonitor,
    ActivationSwap,
    ExactResume,
    LossCurvatureMonitor,
    load_from_checkpoint,
)
from lit_gelu.data import DigitsData, MNISTData
from lit_gelu.export import check_parity, export_onnx
from lit_gelu.tasks import MNISTClassifier

pytestmark = [pytest.mark.forks, pytest.mark.full]

STEPS, OUT, BACK = 12, 4, 8


class Kill(Callback):
    """Ends its own process with SIGKILL before a step."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_start(self, trainer, *rest):
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def register():
    for name, cls in OWN.items():
        activations.register(name, override=True)(cls)


def run(folder, name, data, kill_at=None):
    """Train in this process, from the last checkpoint in a folder if there is one; then export and prove."""
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    tempfile.tempdir = str(folder)
    register()
    resumes = (folder / "saved" / "last.ckpt").exists()
    torch.manual_seed(random.SystemRandom().randrange(2**32) if resumes else 0)
    own = f"{name}(a=0.75)"
    model = MNISTClassifier(own)
    callbacks = [
        ActivationSwap({f"activation:{name}": "gelu"}, at_step=OUT),
        ActivationSwap({"activation:gelu": own}, at_step=BACK),
        ActivationCurvatureMonitor(every_n_steps=2),
        LossCurvatureMonitor(every_n_steps=6, lanczos_steps=4, warm_steps=4, accuracy=None),
        ExactResume(),
        ModelCheckpoint(folder / "saved", filename="{step}", save_last=True, every_n_train_steps=5),
    ]
    logger = CSVLogger(folder, name="logs", version=str(int(resumes)))
    trainer = Trainer(
        accelerator="cpu",
        max_steps=STEPS,
        callbacks=[*callbacks, Kill(kill_at)],
        logger=logger,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=1,
    )
    trainer.fit(model, datamodule=DigitsData() if data == "digits" else MNISTData(), ckpt_path="last")
    sites = [str(site.spec) for site in surgery.find_sites(model)]
    report = export_onnx(model, folder / "net.onnx")
    proof = check_parity(model, folder / "net.onnx", strict=False)
    torch.save(model.state_dict(), folder / "end.pt")
    told = {
        "sites": sites,
        "derivative": activations.functional.derivative(model.hidden[0].activation, torch.zeros(1)).item(),
        "file": [(site.site, site.spec) for site in report.sites],
        "proved": proof.passed,
    }
    (folder / "end.json").write_text(json.dumps(told))


@pytest.mark.parametrize("data", ["digits", pytest.param("mnist", marks=pytest.mark.realdata)])
@pytest.mark.parametrize("name", OWN)
def test_the_whole_way(tmp_path, name, data):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    assert run_forked(run, whole, name, data) == 0
    assert run_forked(run, killed, name, data, OUT + 2) == -signal.SIGKILL
    assert run_forked(run, killed, name, data, BACK + 3) == -signal.SIGKILL
    assert run_forked(run, killed, name, data) == 0
    one, other = (torch.load(folder / "end.pt", weights_only=True) for folder in (whole, killed))
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[key]) for key, value in one.items())
    told = json.loads((whole / "end.json").read_text())
    assert told == json.loads((killed / "end.json").read_text())
    assert set(told["sites"]) == {f"{name}(a=0.75)"}
    assert told["derivative"] == pytest.approx(0.5)  # of x s(a x) at 0
    assert told["proved"]
    assert f"{name}(a=0.75)" in {spec for _, spec in told["file"]}
    watched_all_the_while(whole / "logs" / "0" / "metrics.csv")
    loads_what_was_trained(whole / "saved" / "last.ckpt", name)


def watched_all_the_while(path):
    """The monitor's figures are there before, between and after the swaps; f'' of x s(a x) at 0 is a / 2 at most."""
    with path.open() as file:
        rows = [
            row for row in csv.DictReader(file) if row.get("curvature/hidden.0.activation/mean_abs_second_derivative")
        ]
    steps = [int(row["step"]) for row in rows]
    assert len([step for step in steps if step < OUT]) >= 1
    assert len([step for step in steps if OUT <= step < BACK]) >= 1
    assert len([step for step in steps if step >= BACK]) >= 1
    assert all(0 < float(row["curvature/hidden.0.activation/mean_abs_second_derivative"]) < 1 for row in rows)


def loads_what_was_trained(path, name):
    """Both loaders put the activations in, before their parameters and buffers are loaded."""
    with activations.registry.scope():
        register()
        checkpoint = torch.load(path, weights_only=True)["state_dict"]
        for loaded in (MNISTClassifier.load_from_checkpoint(path), load_from_checkpoint(MNISTClassifier, path)):
            assert {str(activations.spec_of(m)) for m in loaded.modules() if type(m) is OWN[name]} == {
                f"{name}(a=0.75)"
            }
            assert isinstance(loaded, nn.Module)
            assert all(torch.equal(value, checkpoint[key]) for key, value in loaded.state_dict().items())
