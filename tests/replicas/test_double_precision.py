"""Groups in float64 against the runs alone, unbroken and resumed."""

import functools

import pytest
import torch
from lightning.pytorch import seed_everything
from measured_replicas import Measuring, Sets
from replica_runs import Run, State, batched_products_are_single_ones, check_equal, runs_of
from small_task import quiet_trainer

from lit_gelu.replicas import ReplicaDataModule, ReplicaGroup
from lit_gelu.tasks import TweetTagger

SEEDS = [0, 1]
TAGGERS = [{"activation": "gelu", "keep": 0.5}, {"activation": "prelu", "learning_rate": 1e-2}]
BUILDS = {
    "task": (functools.partial(TweetTagger, vector_size=8), TAGGERS, (24, 256, 256, 25), ["auto", "stacked", "loop"]),
    "own": (Measuring, [{"lr": 0.1}, {"lr": 0.01}], (24, 32, 25), ["auto", "loop"]),
}
CASES = [(name, executor) for name, (*_, executors) in BUILDS.items() for executor in executors]


def alone(build, cell, seed):
    """Return a run of three epochs in float64."""
    seed_everything(seed, verbose=False)
    module, trainer = build(**cell), quiet_trainer(max_epochs=3, precision="64-true")
    trainer.fit(module, datamodule=Sets())
    weights = dict(module.state_dict())
    state = State(weights, trainer.optimizers[0].state_dict(), torch.get_rng_state())
    return Run({trainer.global_step: state}), float(trainer.callback_metrics["val_loss"])


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "executor"), CASES)
def test_a_group_in_float64_is_the_runs_alone(name, executor, tmp_path):
    build, cells, sizes, _ = BUILDS[name]

    def fitted(epochs, path=None):
        group = ReplicaGroup.of(build, cells, SEEDS, executor=executor, steps_per_batch=4)
        trainer = quiet_trainer(max_epochs=epochs, precision="64-true")
        trainer.fit(group, datamodule=ReplicaDataModule(Sets()), ckpt_path=path, weights_only=True if path else None)
        trainer.save_checkpoint(tmp_path / f"{epochs}.ckpt")
        return group, trainer

    group, trainer = fitted(3)
    runs = [alone(build, cell, seed) for cell, seed in zip(cells, SEEDS, strict=True)]
    exact = batched_products_are_single_ones(sizes, 8, 2)
    assert next(group.members[0].parameters()).dtype == torch.float64
    check_equal([run for run, _ in runs], runs_of(group, trainer), exact)
    assert group.measured["val_loss"].tolist() == pytest.approx(
        [loss for _, loss in runs], rel=1e-12 if exact else 1e-5
    )
    fitted(2)
    check_equal(runs_of(group, trainer), runs_of(*fitted(3, tmp_path / "2.ckpt")))


def test_a_group_is_measured_in_float64_without_training():
    group = ReplicaGroup.of(Measuring, [{"lr": 0.1}, {"lr": 0.01}], SEEDS)
    quiet_trainer(precision="64-true").test(group, datamodule=ReplicaDataModule(Sets()), verbose=False)
    for replica, seed in enumerate(SEEDS):
        seed_everything(seed, verbose=False)
        tested = quiet_trainer(precision="64-true").test(Measuring(), datamodule=Sets(), verbose=False)[0]
        assert float(group.measured["test_loss"][replica]) == tested["test_loss"]
