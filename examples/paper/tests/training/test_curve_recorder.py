"""The recorder measures what Lightning would, and the training does not notice."""

import math
import random

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from small_task import SmallData, quiet_trainer
from torch import nn

from lit_gelu.data import DigitsData
from gelu_paper.errors import PaperArgumentError
from gelu_paper.records.run_record import Curve, RunResult, result_of
from gelu_paper.training.curve_recorder import (
    SAMPLES_AT_ONCE,
    CurveRecorder,
    EvaluationSet,
    evaluation_steps,
    means,
)
from lit_gelu.tasks import MNISTAutoencoder, MNISTClassifier

pytestmark = pytest.mark.filterwarnings("ignore:Found 1 module.s. in eval mode")  # which is what the test is about


class NormalisedClassifier(MNISTClassifier):
    """With batch normalisation, whose running statistics an evaluation must not touch, and a frozen module."""

    def __init__(self, **options) -> None:
        super().__init__(hidden_layers=2, keep=0.5, **options)
        self.norm = nn.BatchNorm1d(784)
        self.frozen = nn.Dropout(0.5).eval()

    def forward(self, images):
        return super().forward(self.norm(images.flatten(1)))


class Logged(Callback):
    """Keeps what each step logged."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_train_batch_end(self, trainer, *_) -> None:
        self.losses.append(trainer.callback_metrics["train_loss"].item())


def sets_of(data) -> dict[str, EvaluationSet]:
    data.setup("fit")
    data.setup("test")
    sets = {"val": EvaluationSet.of(data.val_dataloader()), "test": EvaluationSet.of(data.test_dataloader())}
    return {name: samples for name, samples in sets.items() if samples is not None}


def train(callbacks, make=NormalisedClassifier, seed=0, **options):
    """Train from a seed that was set after the data were read; return the model and the random state afterwards."""
    data = SmallData()
    data.setup("fit")
    data.setup("test")
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the global generator is what must not be touched
    model = make()
    trainer = quiet_trainer(callbacks=callbacks, limit_val_batches=0, **{"max_epochs": 3, **options})
    trainer.fit(model, datamodule=data)
    state = np.random.get_state()[1].tolist()  # noqa: NPY002 - as above
    return model, (torch.get_rng_state(), random.getstate(), state)


def test_training_is_the_same_to_the_bit():
    alone, state_alone = train([])
    recorder = CurveRecorder(sets_of(SmallData()), 3)
    recorded, state_recorded = train([recorder])
    assert recorder.curves
    for (name, one), other in zip(alone.state_dict().items(), recorded.state_dict().values(), strict=True):
        assert torch.equal(one, other), name
    assert torch.equal(state_alone[0], state_recorded[0])
    assert state_alone[1:] == state_recorded[1:]


def test_a_stochastic_evaluation_draws_nothing_from_the_training():
    def make():
        return MNISTClassifier("zero_identity_map(evaluation='stochastic')", hidden_layers=1)

    (alone, _), (recorded, _) = (train(c, make) for c in ([], [CurveRecorder(sets_of(SmallData()), 3)]))
    assert torch.equal(alone.output.weight, recorded.output.weight)


def test_modes_of_modules_stay():
    modes = []

    class Modes(Callback):
        def on_train_batch_start(self, trainer, pl_module, *_):
            modes.append((pl_module.norm.training, pl_module.frozen.training))

    train([CurveRecorder(sets_of(SmallData()), 3), Modes()])
    assert modes == [(True, False)] * 9


def test_the_measurements_are_lightning_s_own():
    recorder, logged = CurveRecorder(sets_of(SmallData()), 3), Logged()
    model, _ = train([recorder, logged])
    curves = recorder.curves
    trainer = quiet_trainer()
    (val,), (test,) = (run(model, datamodule=SmallData(), verbose=False) for run in (trainer.validate, trainer.test))
    for name, expected in (val | test).items():
        assert curves[name].value[-1] == pytest.approx(expected, rel=1e-6)
    assert set(curves) == {"train_loss", "val_loss", "val_error", "test_loss", "test_error"}
    # 24 samples in batches of 8: a measurement after each step, so the mean is of one.
    assert curves["train_loss"].value == pytest.approx(logged.losses)
    assert curves["test_error"].epoch == pytest.approx([1 / 3, 2 / 3, 1, 4 / 3, 5 / 3, 2, 7 / 3, 8 / 3, 3])


def test_training_curves_are_means_since_the_measurement_before():
    recorder, logged = CurveRecorder(sets_of(SmallData()), 1), Logged()
    train([recorder, logged])
    assert recorder.curves["train_loss"].epoch == (1.0, 2.0, 3.0)
    expected = np.asarray(logged.losses, dtype=np.float64).reshape(3, 3).mean(axis=1)
    assert recorder.curves["train_loss"].value == pytest.approx(expected.tolist(), rel=1e-6)


def test_a_task_without_validation_set_and_without_errors():
    data = SmallData()
    recorder = CurveRecorder({"test": sets_of(data)["test"]}, 1)
    model, _ = train([recorder], lambda: MNISTAutoencoder("relu"), max_epochs=1)
    assert set(recorder.curves) == {"train_loss", "test_loss"}
    images = sets_of(data)["test"].inputs
    with torch.no_grad():
        expected = (model.eval()(images).double() - images.double()).square().mean().item()
    assert recorder.curves["test_loss"].value[-1] == pytest.approx(expected, rel=1e-6)


def test_large_sets_are_gone_through_in_parts():
    samples = 2 * SAMPLES_AT_ONCE + 7
    generator = torch.Generator().manual_seed(0)
    data = EvaluationSet(
        torch.rand(samples, 784, generator=generator), torch.randint(10, (samples,), generator=generator)
    )
    model = MNISTClassifier(hidden_layers=1).eval()
    with torch.no_grad():
        found, logits = means(model, data), model(data.inputs)
    assert found["error"] == pytest.approx((logits.argmax(1) != data.labels).double().mean().item(), abs=1e-12)
    assert found["loss"] == pytest.approx(nn.functional.cross_entropy(logits.double(), data.labels).item(), rel=1e-6)


def test_a_run_that_diverges_is_ended_and_says_so():
    class Exploding(MNISTClassifier):
        def mean_loss(self, inputs, labels):
            loss = super().mean_loss(inputs, labels)
            return loss * math.inf if self.global_step >= 4 else loss

    recorder = CurveRecorder(sets_of(SmallData()), 1)
    train([recorder], lambda: Exploding(hidden_layers=1), max_epochs=50)
    assert recorder.diverged
    losses = recorder.curves["train_loss"].value
    assert math.isfinite(losses[0])
    assert not math.isfinite(losses[-1])
    assert len(losses) == 2  # of 50: the rest would be no better


def test_a_healthy_run_has_not_diverged():
    recorder = CurveRecorder(sets_of(SmallData()), 1)
    train([recorder])
    assert not recorder.diverged


def test_progress_is_reported():
    reported = []
    train([CurveRecorder(sets_of(SmallData()), 1, reported.append)])
    assert reported[0].epoch == pytest.approx(1 / 3)
    assert reported[0].epoch_steps == 3


@pytest.mark.parametrize(("steps", "evaluations"), [(429, 3), (937, 6), (57, 6), (913, 6), (500, 1), (5, 10), (1, 6)])
def test_evaluations_are_evenly_spaced_and_end_with_the_epoch(steps, evaluations):
    found = sorted(evaluation_steps(steps, evaluations))
    assert found[-1] == steps
    assert len(found) == min(steps, evaluations)
    gaps = np.diff([0, *found])
    assert gaps.max() - gaps.min() <= 1


def test_what_is_refused():
    with pytest.raises(PaperArgumentError, match="evaluations=0"):
        CurveRecorder({}, 0)

    class Other(LightningModule):
        pass

    with pytest.raises(PaperArgumentError, match=r"Other given; accepted: a lit_gelu.tasks.ActivationTask"):
        CurveRecorder({}, 1).on_train_start(quiet_trainer(), Other())


def test_digits_are_learned():
    recorder = CurveRecorder(sets_of(DigitsData()), 2)
    torch.manual_seed(0)
    quiet_trainer(callbacks=[recorder], max_epochs=2, limit_val_batches=0).fit(
        MNISTClassifier(hidden_layers=1, learning_rate=1e-2), datamodule=DigitsData()
    )
    assert recorder.curves["test_error"].value[-1] < 0.15 < recorder.curves["test_error"].value[0] + 0.1


class TestResult:
    def test_the_first_of_equal_validation_errors_counts(self):
        curves = {
            "train_loss": Curve((1.0, 2.0, 3.0), (0.9, 0.8, 0.7)),
            "val_error": Curve((1.0, 2.0, 3.0), (0.3, 0.1, 0.1)),
            "test_error": Curve((1.0, 2.0, 3.0), (0.31, 0.12, 0.11)),
            "test_loss": Curve((1.0, 2.0, 3.0), (1.0, 0.5, 0.6)),
        }
        assert result_of(curves) == RunResult(2.0, 0.1, 0.12, 0.11, 0.6, 0.7)

    def test_what_is_no_number_is_none(self):
        curves = {
            "train_loss": Curve((1.0, 2.0), (0.9, math.nan)),
            "val_error": Curve((1.0, 2.0), (math.nan, 0.4)),
            "test_error": Curve((1.0, 2.0), (0.1, math.inf)),
        }
        assert result_of(curves) == RunResult(2.0, 0.4, None, None, None, None)
        assert result_of({}) == RunResult()
        assert result_of({"val_error": Curve((1.0,), (math.nan,))}) == RunResult()
