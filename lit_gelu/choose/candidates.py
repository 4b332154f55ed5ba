"""What is compared: activations by name, and how each comes into a user's module."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import LightningModule
from torch import nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.choose.errors import ChoiceArgumentError
from lit_gelu.choose.verdict import listed
from lit_gelu.errors import shown
from lit_gelu.random_states import seeded
from lit_gelu.replicas import shared_parts
from lit_gelu.surgery import NoMatchError, SwapPlan, plan_swap

Build = Callable[..., LightningModule]
_SAMPLE = "A comparison takes the module's example_input_array for it: define that."


@dataclass(frozen=True)
class ActivationCandidate:
    """One of the activations that are compared.

    Args:
        label: What it is called in tables: what was given, where that is text.
        given: What the module is built with.
        spec: The same in canonical form, as text; equal for two names of one activation.
    """

    label: str
    given: Any
    spec: str


def candidates_of(
    activations: Sequence[Any] | Mapping[str, Any], registry: ActivationRegistry
) -> list[ActivationCandidate]:
    """Return the activations that were given, each with a label of its own.

    Args:
        activations: Specs, or specs by label.
        registry: Where their names are looked up.

    Raises:
        ChoiceArgumentError: If there are less than two, or two of one label.
        UnknownActivationError: If a name is not registered.
    """
    if isinstance(activations, str) or not isinstance(activations, Mapping | Sequence):
        raise ChoiceArgumentError(
            f'activations={shown(activations)} is not accepted. Give several, such as ["gelu", "silu", "relu"].'
        )
    pairs = (
        [(str(label), given) for label, given in activations.items()]
        if isinstance(activations, Mapping)
        else [(_label(given, registry), given) for given in activations]
    )
    labels = [label for label, _ in pairs]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice or len(labels) < 2:
        said = f"{twice[0]!r} is there twice" if twice else f"{len(labels)} given"
        raise ChoiceArgumentError(
            f"activations={shown(labels)}: {said}. Give at least two that are called differently; a mapping gives them "
            'labels of your own: {"gelu": "gelu", "the same again": "gelu"}.'
        )
    return [ActivationCandidate(label, given, str(registry.resolve(given))) for label, given in pairs]


def _label(given: Any, registry: ActivationRegistry) -> str:
    return given if isinstance(given, str) else str(registry.resolve(given))


def builder(build: Build, exchanged: Sequence[Any], registry: ActivationRegistry) -> Build:
    """Return a function of ``activation`` alone that builds a module.

    Args:
        build: A class or function that takes ``activation``; without arguments where sites are exchanged.
        exchanged: Which sites of a built module are given the activation, as `lit_gelu.surgery.swap` names them; none
            if ``build`` takes it.
        registry: Where names are looked up.

    Raises:
        ChoiceArgumentError: If ``build`` takes no activation, and no sites are named.
    """
    if not exchanged:
        _require_activation(build)

        def built(activation: Any) -> LightningModule:
            # A module that is given as a candidate is copied: no run goes on with what another has trained.
            return build(activation=deepcopy(activation) if isinstance(activation, nn.Module) else activation)

        return built

    def swapped(activation: Any) -> LightningModule:
        module = build()
        _plan(module, exchanged, activation, registry).apply()
        return module

    return swapped


def check_built_anew(build: Build, candidate: ActivationCandidate) -> None:
    """Refuse a function whose modules have parameters or buffers in common: a run would go on where another ended.

    Raises:
        ChoiceArgumentError: If two modules share what training changes.
    """
    with seeded(0):
        one, other = (build(activation=candidate.given) for _ in range(2))
    shared = shared_parts(one, other)
    if shared:
        raise ChoiceArgumentError(
            f"build returns modules that have {listed(shared[:3])} in common, so that every run would go on with what "
            "the one before has trained. Build or copy within the function: lambda activation: "
            "Net(copy.deepcopy(encoder), activation)."
        )


def notes_of_exchange(
    build: Build, exchanged: Sequence[Any], candidate: ActivationCandidate, registry: ActivationRegistry
) -> list[str]:
    """Say which sites of a module are given the activation, and which calls of functions are not."""
    if not exchanged:
        return []
    module = build()
    plan = _plan(module, exchanged, candidate.given, registry)
    names = [row.name for row in plan.rows] + [row.name for row in plan.skipped]
    sites = listed([name or "the module itself" for name in names])
    notes = [f"The activations at {sites} are exchanged.", *plan.notes]
    if plan.notes and getattr(module, "example_input_array", None) is None:
        notes[-1] += f" {_SAMPLE}"
    return notes


def _plan(module: LightningModule, exchanged: Sequence[Any], activation: Any, registry: ActivationRegistry) -> SwapPlan:
    sample = getattr(module, "example_input_array", None)
    try:
        return plan_swap(module, dict.fromkeys(exchanged, activation), sample, registry=registry)
    except NoMatchError as error:
        raise error if sample is not None else NoMatchError(f"{error} {_SAMPLE}") from error


def _require_activation(build: Build) -> None:
    name = getattr(build, "__name__", type(build).__name__)
    if not callable(build):
        raise ChoiceArgumentError(
            f"build={shown(build)} is not accepted. Give the class of your module, or a function that returns one."
        )
    try:
        parameters = inspect.signature(build).parameters.values()
    except ValueError:  # of something written in C
        return
    if not any(p.name == "activation" or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        raise ChoiceArgumentError(
            f"{name}({', '.join(p.name for p in parameters)}) takes no activation. Give a class or function with an "
            "argument activation=, or swap=True: the activations of what it returns are then exchanged."
        )
