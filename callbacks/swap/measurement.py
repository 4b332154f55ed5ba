"""What a swap does to the activations' statistics and to the model's output, measured on one batch."""

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor
from torch.utils import _pytree as pytree

from lit_gelu.activations import ActivationRegistry
from lit_gelu.callbacks.swap.history import modules_of
from lit_gelu.callbacks.trainer_loggers import Path
from lit_gelu.curvature import ActivationRecorder, evaluation_sandbox, statistics_by_site
from lit_gelu.curvature.activation.statistics import accumulation_dtype
from lit_gelu.curvature.ranks import maximum_over_ranks, sum_over_ranks
from lit_gelu.errors import ArgumentError
from lit_gelu.sandbox import as_written
from lit_gelu.surgery import SwapPlan, SwapReport

PREFIX = "activation_swap"


def first_of_batch(batch: Any) -> Any:
    """Return the model's input: the batch itself if it is a tensor, the first element of a tuple or list."""
    if isinstance(batch, Tensor):
        return batch
    if isinstance(batch, (tuple, list)) and batch:
        return batch[0]
    raise ArgumentError(
        f"ActivationSwap(curvature=True) cannot tell the model's input from a batch of type {type(batch).__name__}. "
        "Give input_from_batch=, a function from the batch to what forward takes: a tensor, a tuple of arguments, or a "
        "dict of keyword arguments."
    )


def require_forward(pl_module: LightningModule) -> None:
    """Refuse a module that cannot be called, at the start of training and not at the swap."""
    if type(pl_module).forward is LightningModule.forward:
        raise ArgumentError(
            f"ActivationSwap(curvature=True) calls the model, and {type(pl_module).__name__} has no forward. Define "
            "forward, or leave curvature out."
        )


def measure_swap(
    trainer: Trainer, pl_module: LightningModule, plan: SwapPlan, inputs: Any, registry: ActivationRegistry | None
) -> tuple[SwapReport, dict[Path, float]]:
    """Apply a swap between two forward passes on the same input; return its report and the figures to log."""
    # The passes are made in evaluation mode without gradients, in the Trainer's precision; train/eval flags, buffers
    # and random number generators are then as before. Figures cover the batches of all ranks: of each site
    # before/<statistic> and after/<statistic>, of the output jump/relative = ||new - old|| / ||old|| and
    # jump/max_absolute.
    places = modules_of(plan)  # a call, or a function that a module holds, has no module before
    sums_before, old = _observe(trainer, pl_module, places, inputs, registry)
    report = plan.apply()
    sums_after, new = _observe(trainer, pl_module, places, inputs, registry)
    jump = _jump_sums(old, new)
    jump[2:] = maximum_over_ranks(jump[2:].clone())
    jump[:2] = sum_over_ranks(jump[:2].clone())
    sums = sum_over_ranks(torch.cat([sums_before, sums_after]))
    figures = statistics_by_site([(name, "before") for name in places] + [(name, "after") for name in places], sums)
    paths: dict[Path, float] = {
        (PREFIX, *site, name): value for site, row in figures.items() for name, value in row.items()
    }
    paths[PREFIX, "jump", "relative"] = (jump[0] / jump[1]).sqrt().item()
    paths[PREFIX, "jump", "max_absolute"] = jump[2].item()
    return report, paths


def _observe(
    trainer: Trainer,
    pl_module: LightningModule,
    places: Mapping[str, str],
    inputs: Any,
    registry: ActivationRegistry | None,
) -> tuple[Tensor, list[Tensor]]:
    """Return the statistics' sums at the named sites, and the output's floating-point tensors."""
    sites = {name: pl_module.get_submodule(place) for name, place in places.items()}
    with (
        isolate_rng(),
        evaluation_sandbox(pl_module),
        trainer.precision_plugin.forward_context(),
        as_written(),  # what is compiled already sees no new hook
        ActivationRecorder(sites, sample_rows=None, registry=registry) as recorder,
    ):
        recorder.start()
        output = _call(pl_module, inputs)
        recorder.stop()
        sums = recorder.sums(pl_module.device)
    leaves = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    return sums, leaves


def _call(pl_module: LightningModule, inputs: Any) -> Any:
    if isinstance(inputs, tuple):
        return pl_module(*inputs)
    return pl_module(**inputs) if isinstance(inputs, Mapping) else pl_module(inputs)


def _jump_sums(old: list[Tensor], new: list[Tensor]) -> Tensor:
    """Return ``[||new - old||^2, ||old||^2, max |new - old|]`` over the tensors of an output."""
    if not old or [leaf.shape for leaf in old] != [leaf.shape for leaf in new]:
        raise ArgumentError(
            "The output holds no floating-point tensor, or changes its shape with the swap, so its jump cannot be "
            "measured. Leave curvature out."
        )
    dtype = accumulation_dtype(old[0].device)
    before, after = (torch.cat([leaf.detach().to(dtype).flatten() for leaf in leaves]) for leaves in (old, new))
    change = after - before
    largest = change.abs().amax() if change.numel() else change.sum()
    return torch.stack([change.square().sum(), before.square().sum(), largest])
