"""What a pass of a sample shows of a model: which activations are called, by whom, and where in the code."""

import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationSpec
from lit_gelu.surgery.functions import KnownFunction
from lit_gelu.surgery.locations import Location
from lit_gelu.surgery.places import CallPlace
from lit_gelu.surgery.source import Position, end_of

Key = tuple[int, types.CodeType, Position | int, str]
"""Calling module, code, end of the expression (or the instruction), and what is called there."""


@dataclass
class Call:
    """One expression that calls an activation, with all that was seen of it.

    Args:
        owner: The module whose method makes the call.
        where: File and line.
        place: The expression; what stands in the way of writing it anew, if something does.
        specs: What it computed; more than one only if it calls different activations.
        name: What the site is called after, such as ``"gelu"``; empty for a module of the model, which has a name.
        known: The function that is called; of a module that is no part of the model, the one that it calls.
        count: How often it was reached.
        inputs: The inputs' shapes, without repetition.
        child: The name by which the owner, an ``nn.Sequential``, calls the module.
        holder: The module that holds the function as an attribute, if it is called through one.
        held: The name of the attribute.
        checkpointed: Whether ``torch.utils.checkpoint`` stands between the owner's method and the call.
        training_only: Whether only the pass in training mode reached it.
    """

    owner: nn.Module
    where: str
    place: CallPlace | str
    specs: list[ActivationSpec] = field(default_factory=list)
    name: str = ""
    known: KnownFunction | None = None
    count: int = 0
    inputs: list[torch.Size] = field(default_factory=list)
    child: str = ""
    holder: nn.Module | None = None
    held: str = ""
    checkpointed: bool = False
    training_only: bool = False

    def note(self, spec: ActivationSpec | None, x: Any, *, training: bool) -> None:
        """Note one call; what evaluation reaches too is counted there alone.

        Args:
            spec: What it computes.
            x: Its input.
            training: Whether the pass is in training mode.
        """
        self.count += training == self.training_only
        if spec is not None and spec not in self.specs:
            self.specs.append(spec)
        if isinstance(x, Tensor) and x.shape not in self.inputs:
            self.inputs.append(x.shape)


@dataclass
class Observation:
    """What was seen in two passes, one in evaluation mode and one in training mode.

    Args:
        functions: Calls of functions, of tensors' methods, and of activation modules that are no part of the model, in
            the order of the first.
        modules: Calls of every activation module, by its ``id``, in the order of the first.
        extents: By module and name of a function, the calls of it while a method of the module ran, those that
            activation modules make among them.
        training_error: Why the pass in training mode failed; empty if it did not.
    """

    functions: dict[Key, Call] = field(default_factory=dict)
    modules: dict[int, dict[Key, Call]] = field(default_factory=dict)
    extents: dict[tuple[int, str], set[Key]] = field(default_factory=dict)
    training_error: str = ""


def input_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the input of a call of an activation.

    Args:
        args: As called.
        kwargs: As called.

    Returns:
        The first argument, or the one called ``input`` or ``x``.
    """
    return args[0] if args else next((kwargs[key] for key in ("input", "x", "self") if key in kwargs), None)


def key_of(found: Location, called: str) -> Key:
    """Return what tells the expression of a call from all others.

    Args:
        found: Where the call comes from.
        called: What is called there.

    Returns:
        The key.
    """
    code, instruction = found.frame.f_code, found.frame.f_lasti
    return id(found.owner), code, end_of(code, instruction) or instruction, called
