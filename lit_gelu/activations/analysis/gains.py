"""Gains: by how much weights must be scaled so that an activation keeps the size of signals, or of gradients.

A layer whose weights have variance ``g^2 / fan_in`` turns activations ``f(x)`` into pre-activations of variance
``g^2 E f(x)^2``, and gradients of variance v at its outputs into gradients of variance ``v g^2 E f'(x)^2`` at ``x``
(for equal widths). He et al. 2015 (arXiv 1502.01852) use the first with ReLU; the second is ``chi_1`` of Poole et al.
2016 (arXiv 1606.05340) and Schoenholz et al. 2017 (arXiv 1611.01232). The variance gain is the ``gamma`` of NFNets
(Brock, De and Smith 2021, arXiv 2101.08692), for weights whose rows have mean 0.
"""

import math
from typing import Any

from lit_gelu.activations.analysis.shape import shape_of
from lit_gelu.activations.errors import ActivationArgumentError, NoGaussianMomentsError
from lit_gelu.activations.gaussian import GaussianMoments, gaussian_moments
from lit_gelu.activations.naming.entry import ActivationFacts, ActivationGains
from lit_gelu.activations.naming.names import Names
from lit_gelu.activations.naming.scalar import ScalarActivation
from lit_gelu.activations.naming.spec import ActivationSpec
from lit_gelu.activations.numerics.channels import INFER
from lit_gelu.errors import ArgumentError

KINDS = {"forward": "E f^2", "variance": "the variance of f", "backward": "E f'^2"}
"""What each kind of gain is one over the square root of."""

_MOMENTS = {"forward": "value_squared", "variance": "variance", "backward": "derivative_squared"}


def gain(
    activation: Any, kind: str = "forward", mean: float = 0.0, std: float = 1.0, *, registry: Names | None = None
) -> float:
    """Return a gain of an activation for pre-activations ``x ~ N(mean, std^2)``.

    ``forward = 1 / sqrt(E f^2)``, ``variance = 1 / sqrt(E f^2 - (E f)^2)``, ``backward = 1 / sqrt(E f'^2)``. The first
    two bring ``f(x)`` to size 1: to keep pre-activations at their own ``std``, multiply by it.

    Gains are accurate to 1e-11 of themselves.

    Args:
        activation: Any spec of an elementwise activation; see `gaussian.gaussian_moments`.
        kind: ``"forward"``, ``"variance"`` or ``"backward"``.
        mean: Of the pre-activations.
        std: Their standard deviation, positive.
        registry: Where names are looked up; by default `lit_gelu.activations.registry`.

    Raises:
        ActivationArgumentError: If the kind is none of these, ``std`` is not positive, or it is not elementwise.
        NoGaussianMomentsError: If the expectation is 0 or does not exist.

    Example:
        >>> round(gain("gelu"), 6), round(gain("gelu", "variance"), 6), round(gain("gelu", "backward"), 6)
        (1.53353, 1.700926, 1.481114)
        >>> round(0.5 * gain("gelu", std=0.5), 6)
        1.730252
    """
    if kind not in KINDS:
        raise ActivationArgumentError(f"kind={kind!r} is not accepted. Accepted: {', '.join(map(repr, KINDS))}.")
    moments = gaussian_moments(activation, float(mean), float(std), registry=registry)
    return _gain(moments, activation, kind)


def gains(activation: Any, *, registry: Names | None = None) -> ActivationGains:
    """Return all three gains for standard normal pre-activations."""
    moments = gaussian_moments(activation, registry=registry)
    return ActivationGains(**{kind: _gain(moments, activation, kind) for kind in KINDS})


def _gain(moments: GaussianMoments, activation: Any, kind: str) -> float:
    expectation = getattr(moments, _MOMENTS[kind]).item()
    if not expectation > 0.0:
        raise NoGaussianMomentsError(
            f"{str(activation)!r} has no {kind} gain: {KINDS[kind]} is {expectation:g} for these pre-activations, and "
            "the gain is one over its square root."
        )
    return 1.0 / math.sqrt(expectation)


def computed_facts(spec: ActivationSpec, facts: ActivationFacts, registry: Names) -> dict[str, Any]:
    """Return the fields of `ActivationShape` and the gains; nothing of what is no function of one number."""
    if not facts.elementwise:
        return {}
    if spec.arguments.get("channels") == INFER:
        spec = ActivationSpec.of(spec.name, **{**spec.arguments, "channels": 1})
    try:
        shape = shape_of(ScalarActivation.of(spec, registry))
    except ArgumentError:  # it differs between channels
        return {}
    try:
        return {**vars(shape), "gains": gains(spec, registry=registry)}
    except ArgumentError:  # an expectation that is 0 or does not exist
        return vars(shape)
