"""Arguments and inputs that a task refuses, each with the remedy."""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationSpec
from lit_gelu.errors import ArgumentError, CheckpointError, shown
from lit_gelu.surgery import infer_channels_

TaskArgumentError = TaskInputError = ArgumentError
CheckpointMismatchError = CheckpointError


PIXELS = 28 * 28
COLOUR_SHAPE = (3, 32, 32)
_Range = tuple[Callable[[float], bool], str]  # whether a number is accepted, and what is
_RANGES: Mapping[str, _Range] = {
    "learning_rate": (lambda value: 0 < value < math.inf, "a number above 0, such as 1e-3"),
    "keep": (lambda value: 0 < value <= 1, "a probability above 0 and at most 1; 1 turns dropout off"),
    "noise": (lambda value: 0 <= value < math.inf, "a standard deviation of at least 0; 0 turns noise off"),
    "momentum": (lambda value: 0 <= value < 1, "a number of at least 0 and below 1"),
    "dropout": (lambda value: 0 <= value < 1, "a number of at least 0 and below 1"),
    "weight_decay": (lambda value: 0 <= value < math.inf, "a number of at least 0, such as 1e-3"),
}
_COUNT: _Range = (lambda value: isinstance(value, int) and value >= 1, "an integer of at least 1")


def check_numbers(**given: float) -> None:
    """Refuse numbers out of the range that their name says; any other name is a count."""
    for name, value in given.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise TaskArgumentError(f"{name}={shown(value)} is not accepted. Give a number.")
        is_accepted, accepts = _RANGES.get(name, _COUNT)
        if not is_accepted(value):
            raise TaskArgumentError(f"{name}={shown(value)} is not accepted. Give {accepts}.")


def check_one_of(accepted: Sequence[str], **given: str) -> None:
    """Refuse words that are not among those that are known."""
    for name, value in given.items():
        if value not in accepted:
            raise TaskArgumentError(
                f"{name}={shown(value)} is not accepted. Give one of {', '.join(map(repr, accepted))}."
            )


def check_shape_kept(activation: nn.Module, spec: ActivationSpec, width: int) -> None:
    """Refuse an activation, such as a gated one, that changes the size of the last dimension."""
    infer_channels_(activation, torch.zeros(2, width))
    with torch.no_grad():
        shape = list(activation.eval()(torch.zeros(2, width)).shape)
    if shape != [2, width]:
        raise TaskArgumentError(
            f"activation={str(spec)!r} turns shape {[2, width]} into {shape}. Give one that keeps its input's shape."
        )


def check_digit_images(images: Tensor) -> None:
    """Refuse a batch that does not hold 784 pixels a sample in a floating dtype."""
    if images.ndim < 2 or images.shape[1:].numel() != PIXELS:
        raise TaskInputError(
            f"Images of shape {list(images.shape)} given; accepted: [batch, 1, 28, 28] or [batch, 784]."
        )
    if not images.is_floating_point():
        raise TaskInputError(
            f"Images of dtype {images.dtype} given; accepted: a floating dtype, pixels in [0, 1]. For bytes: "
            "images.float() / 255."
        )


def check_colour_images(images: Tensor) -> None:
    """Refuse a batch that does not hold 32x32 pixels in three colours a sample in a floating dtype."""
    if images.ndim != 4 or images.shape[1:] != COLOUR_SHAPE:
        raise TaskInputError(f"Images of shape {list(images.shape)} given; accepted: [batch, 3, 32, 32].")
    if not images.is_floating_point():
        raise TaskInputError(
            f"Images of dtype {images.dtype} given; accepted: a floating dtype, as the data module makes it. For "
            "bytes: data.preprocessing()(images)."
        )
