"""`SwapRun`: what a checkpoint says of the optimizers holds for the run that reads it, and for no later one."""

from types import SimpleNamespace

import pytest
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn
from torch.optim import SGD

from lit_gelu.callbacks.swap.run import SwapRun

# The bias went and came back, and has a group of its own since.
CHECKPOINT = {"lit_gelu_parameter_groups": [[{"names": ["weight"], "like": 0}, {"names": ["bias"], "like": 0}]]}
FRESH, AS_SAVED = [["weight", "bias"]], [["weight"], ["bias"]]


@pytest.fixture
def run():
    trainer = SimpleNamespace(state=SimpleNamespace(fn=TrainerFn.FITTING), lr_scheduler_configs=[])
    return SwapRun(trainer, nn.Linear(2, 2), [])


def connected(run):
    """The parameters' names in each group of an optimizer that is set up anew, as by each fit."""
    names = {id(parameter): name for name, parameter in run.pl_module.named_parameters()}
    run.trainer.optimizers = [SGD(run.pl_module.parameters(), lr=0.1)]
    run.connect_optimizers()
    return [[names[id(p)] for p in group["params"]] for group in run.trainer.optimizers[0].param_groups]


def test_groups_of_a_checkpoint_are_those_of_the_run_that_reads_it_and_of_no_later_one(run):
    assert connected(run) == FRESH
    run.read_checkpoint(CHECKPOINT)
    assert connected(run) == AS_SAVED
    assert connected(run) == FRESH
    run.read_checkpoint(CHECKPOINT)
    run.forget_checkpoint()  # as the next fit's `setup` does, where this one failed before its start
    assert connected(run) == FRESH
