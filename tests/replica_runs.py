"""A run alone, by `Trainer.fit`, and what it looked like at some steps: what a replica has to be equal to."""

import copy
import itertools
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from lightning.pytorch import Callback, seed_everything
from small_task import quiet_trainer
from torch.utils._pytree import tree_flatten

from lit_gelu.data import InMemoryDataModule
from lit_gelu.data.in_memory import InMemorySamples
from lit_gelu.replicas import BatchOrder, EagerExecutor, build_members
from lit_gelu.tasks import ActivationTask


@dataclass
class State:
    """A run at one step."""

    weights: dict[str, torch.Tensor]
    optimizer: dict[str, Any]
    generator: torch.Tensor


@dataclass
class Run:
    """States by step, and the logged loss of every step."""

    states: dict[int, State] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)


class Samples(InMemoryDataModule):
    """A training set of given inputs and labels, and nothing to validate with."""

    def __init__(self, samples, batch_size, order="global"):
        super().__init__(batch_size, order)
        self.samples = samples

    def load_train_and_val(self):
        inputs, labels = self.samples
        return InMemorySamples(inputs, labels), InMemorySamples(inputs[:0], labels[:0])

    def load_test(self):
        return InMemorySamples(*self.samples)


class Keeping(Callback):
    """Keeps the states at some steps."""

    def __init__(self, steps):
        self.steps, self.run = steps, Run()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
        self.run.losses.append(float(trainer.callback_metrics["train_loss"]))
        if trainer.global_step in self.steps:
            self.run.states[trainer.global_step] = State(
                {name: tensor.detach().clone() for name, tensor in module.state_dict().items()},
                copy.deepcopy(trainer.optimizers[0].state_dict()),
                torch.get_rng_state(),
            )


class Saving(Callback):
    """Saves checkpoints after the batches that end at some steps."""

    def __init__(self, folder, steps):
        self.folder, self.steps = folder, steps

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
        if trainer.global_step in self.steps:
            trainer.save_checkpoint(self.folder / f"{trainer.global_step}.ckpt")

    def on_train_epoch_end(self, trainer, module):
        trainer.save_checkpoint(self.folder / f"end of {trainer.global_step}.ckpt")


def runs_of(group, trainer):
    """Return the members at the present step, as `trained_alone` returns runs."""
    states = group.executor.streams.states()
    checkpoints = [group.member_checkpoint(replica) for replica in range(len(states))]
    return [
        Run({trainer.global_step: State(saved["state_dict"], saved["optimizer_states"][0], state)})
        for saved, state in zip(checkpoints, states, strict=True)
    ]


def trained_alone(build, cell, seed, samples, batch_size, steps, order="global"):
    """Train a cell as anybody would, and return its `Run`."""
    keeping = Keeping(steps)
    seed_everything(seed, verbose=False)
    module = build(**cell)
    trainer = quiet_trainer(max_steps=max(steps), max_epochs=-1, callbacks=[keeping], limit_val_batches=0)
    given = Samples(samples, batch_size, order)
    if isinstance(module, ActivationTask):
        trainer.fit(module, datamodule=given)
    else:
        given.setup("fit")
        trainer.fit(module, train_dataloaders=given.train_dataloader())
    return keeping.run


def trained_together(build, cells, seeds, samples, batch_size, steps, kind="auto", order="global"):
    """Train cells as a group, without a Trainer, and return a `Run` for each."""
    members = build_members(build, cells, seeds)
    executor = EagerExecutor(members, kind)
    optimizer = executor.configure_optimizers()
    drawing, runs, made, epochs = BatchOrder(len(samples[0]), batch_size, order), [Run() for _ in cells], 0, count()
    while made < max(steps):
        for rows in drawing.epoch(executor.streams.generators, next(epochs))[: max(steps) - made]:
            logged = executor.step((samples[0][rows], samples[1][rows]))
            made += 1
            for replica, run in enumerate(runs):
                run.losses.append(float(logged["train_loss"][replica]))
                if made in steps:
                    weights = members[replica].module.state_dict()
                    run.states[made] = State(
                        {name: tensor.detach().clone() for name, tensor in weights.items()},
                        optimizer.member_state(replica),
                        executor.streams.states()[replica],
                    )
    return runs


def differences(one, other):
    """Return what two runs differ in, as text: the step and the name of the tensor, and by how much."""
    found = []
    for step, state in one.states.items():
        its = other.states[step]
        pairs = {name: (tensor, its.weights.get(name)) for name, tensor in state.weights.items()}
        for index, entry in state.optimizer["state"].items():
            own = its.optimizer["state"].get(index, {})
            pairs |= {f"optimizer {index} {key}": (value, own.get(key)) for key, value in entry.items()}
        for name, (mine, theirs) in pairs.items():
            mine, theirs = torch.as_tensor(mine), None if theirs is None else torch.as_tensor(theirs)
            if theirs is None or mine.shape != theirs.shape:
                found.append((step, name, float("inf")))
            elif not torch.equal(mine, theirs):
                found.append((step, name, float((mine.double() - theirs.double()).abs().max())))
        if state.optimizer["state"].keys() != its.optimizer["state"].keys():
            found.append((step, "the optimizer's parameters", float("inf")))
        if not torch.equal(state.generator, its.generator):
            found.append((step, "random numbers", float("inf")))
    return found


def batched_products_are_single_ones(sizes, batch_size, replicas=3):
    """Tell whether this processor's library computes a batch of products as it computes each of them."""
    # MKL does on the processors that were tried. Others may add up in another order: then replicas cannot be equal to
    # the bit, and tests allow `ROUNDING`.
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape):
        return torch.randn(replicas, *shape, generator=generator)

    for fed, width in itertools.pairwise(sizes):
        inputs, weight, bias, gradient = (
            numbers(batch_size, fed),
            numbers(width, fed),
            numbers(width),
            numbers(batch_size, width),
        )
        together = torch.baddbmm(bias[:, None], inputs, weight.transpose(1, 2)), gradient.transpose(1, 2) @ inputs
        for r in range(replicas):
            singly = torch.nn.functional.linear(inputs[r], weight[r], bias[r]), gradient[r].T @ inputs[r]
            if not all(torch.equal(all_[r], one) for all_, one in zip(together, singly, strict=True)):
                return False
        if not torch.equal(gradient @ weight, torch.stack([gradient[r] @ weight[r] for r in range(replicas)])):
            return False
    return True


def same_content(one, other):
    """Tell whether two checkpoints hold the same."""
    (leaves, tree), (others, its) = tree_flatten(one), tree_flatten(other)
    pairs = zip(leaves, others, strict=True) if tree == its else [(0, 1)]
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else bool(a == b) for a, b in pairs)


ROUNDING = 1e-5  # of a weight after a hundred steps


def check_equal(alone, together, exact=True):
    """Fail with the first difference, and the largest."""
    for replica, (one, other) in enumerate(zip(alone, together, strict=True)):
        assert one.states.keys() == other.states.keys()
        found = differences(one, other)
        allowed = 0.0 if exact else ROUNDING
        worst = max((size for *_, size in found), default=0.0)
        assert worst <= allowed, f"replica {replica}: {found[0]} comes first, {worst} is the largest of {len(found)}"
        torch.testing.assert_close(torch.tensor(other.losses), torch.tensor(one.losses), rtol=1e-5, atol=1e-6)
