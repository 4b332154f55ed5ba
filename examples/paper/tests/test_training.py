"""One run: its curves are what an evaluation by hand gives, and recording them changes nothing."""

import math
from dataclasses import replace

import pytest
import torch
from digits_grid import cell_of
from lightning.pytorch import Trainer, seed_everything

from gelu_paper import training
from gelu_paper.training import CurveRecorder, RunOptions, prepare, train
from lit_gelu.data import DigitsData
from lit_gelu.errors import DataError
from lit_gelu.tasks import MNISTClassifier, noise_robustness


@pytest.fixture(scope="module")
def data():
    module = DigitsData()
    module.prepare_data()
    module.setup("fit")
    module.setup("test")
    return module


def sets_of(module):
    return {
        "val": (module.val_set.inputs, module.val_set.labels),
        "test": (module.test_set.inputs, module.test_set.labels),
    }


def fitted(data, callbacks, epochs=2, **arguments):
    seed_everything(0, verbose=False)
    model = MNISTClassifier(hidden_layers=2, keep=0.5, **arguments)
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        callbacks=callbacks,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, datamodule=data)
    return model


def error_of(model, inputs, labels):
    with torch.no_grad():
        return (model.eval()(inputs).argmax(1) != labels).double().mean().item()


def test_recording_leaves_the_training_as_it_is_to_the_bit(data):
    recorder = CurveRecorder(sets_of(data), 3)
    with_it, without = fitted(data, [recorder]), fitted(data, [])
    for one, other in zip(with_it.parameters(), without.parameters(), strict=True):
        assert torch.equal(one, other)
    assert with_it.training == without.training


def test_curves_are_measured_several_times_an_epoch_and_at_its_end(data):
    recorder = CurveRecorder(sets_of(data), 3)
    model = fitted(data, [recorder])
    curves = recorder.curves
    steps = len(data.train_dataloader())
    expected = [epoch + math.ceil(steps * part / 3) / steps for epoch in range(2) for part in (1, 2, 3)]
    assert curves.keys() == {"train_loss", "val_loss", "val_error", "test_loss", "test_error"}
    for curve in curves.values():
        assert curve.epoch == pytest.approx(expected)
    for stage, samples in sets_of(data).items():
        assert curves[f"{stage}_error"].value[-1] == error_of(model, *samples)
        loss = torch.nn.functional.cross_entropy(model(samples[0]).double(), samples[1]).item()
        assert curves[f"{stage}_loss"].value[-1] == pytest.approx(loss, rel=1e-5)


def test_the_training_loss_is_the_mean_of_what_the_steps_logged(data):
    logged = []

    class Listener(CurveRecorder):
        def on_train_batch_end(self, trainer, *arguments):
            logged.append(trainer.callback_metrics["train_loss"].item())
            super().on_train_batch_end(trainer, *arguments)

    recorder = Listener(sets_of(data), 1)
    fitted(data, [recorder], epochs=1)
    assert recorder.curves["train_loss"].value == pytest.approx([sum(logged) / len(logged)])


def test_a_run_that_diverges_ends(data):
    recorder = CurveRecorder(sets_of(data), 4)
    fitted(data, [recorder], epochs=5, learning_rate=1e30)
    assert recorder.diverged
    assert len(recorder.curves["train_loss"].value) < 20


def test_a_record_has_what_the_run_came_to_and_its_configuration_repeats_it(monkeypatch):
    nets = []

    def robustness(model, samples, levels, seed):
        nets.append(model)
        return noise_robustness(model, samples, levels, seed=seed)

    monkeypatch.setattr(training, "noise_robustness", robustness)
    cell = cell_of("gelu")
    record, again = (train(cell, RunOptions()) for _ in range(2))
    assert record.status == "finished"
    assert record.curves == again.curves
    assert record.config == cell.config
    assert record.data == {"batch_size": 128}
    data = DigitsData(batch_size=128)
    data.setup("test")
    assert record.curves["test_error"].value[-1] == error_of(nets[0], data.test_set.inputs, data.test_set.labels)
    curves = noise_robustness(nets[0], data, (0.0, 1.0), seed=cell.seed)
    assert record.robustness.error == curves.error
    assert record.robustness.loss == pytest.approx(curves.loss, rel=1e-12)  # sums of another order
    assert record.robustness.error[0] == record.curves["test_error"].value[-1]


def test_another_seed_is_another_run():
    cell = cell_of("relu")
    one, other = (train(replace(cell, seed=seed), RunOptions()) for seed in (0, 1))
    assert one.curves["train_loss"] != other.curves["train_loss"]


def test_data_that_are_not_there_or_not_the_protocols_are_refused(tmp_path):
    with pytest.raises(DataError):
        prepare({"class_path": "lit_gelu.data.MNISTData", "init_args": {}}, {}, str(tmp_path))
    digits = {"class_path": "lit_gelu.data.DigitsData", "init_args": {}}
    prepare(digits, {}, None)
    with pytest.raises(DataError):
        prepare(digits, {"batch_size": "core test"}, None)


@pytest.mark.realdata
def test_tweets_come_out_as_the_kept_runs_did_but_for_rounding(kept):
    (run,) = [run for run in kept if run.key == "tweets/gelu/lr=0.001/seed=0"]
    config = {**run.config, "trainer": {**run.config["trainer"], "max_epochs": 1}}
    config["data"] = {**config["data"], "init_args": {"batch_size": 16, "clusters": "50mpaths2"}}
    cell = replace(cell_of("gelu"), config=config, seed=0)
    for name, curve in train(cell, RunOptions()).curves.items():
        assert curve.value == pytest.approx(run.curves[name].value[: len(curve.value)], rel=1e-3)
