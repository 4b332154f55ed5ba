"""Kink mass: the part of E|f''| that sits where f' jumps, estimated from a sample."""

import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.functional import derivative
from lit_gelu.curvature.activation.totals import Totals

WINDOW = 0.25
"""Half the width of the window about a kink, in standard deviations of the pre-activation."""

_NEXT_TO_A_KINK = 2.0**-20  # relative to max(1, |place|): far from a place's rounding, near enough for any f'

Jumps = tuple[tuple[float, float], ...]


def kinks_of(activation: nn.Module, registry: ActivationRegistry) -> Jumps | None:
    """Return where f' of an activation jumps, and by how much at construction.

    Args:
        activation: The activation.
        registry: Where its facts are.

    Returns:
        ``(place, jump)`` for every kink; ``None`` if it is not known: what was never registered, or was without saying
        how smooth it is.

    Example:
        >>> from lit_gelu.activations import registry
        >>> kinks_of(nn.Hardswish(), registry), kinks_of(nn.GELU(), registry)
        (((-3.0, -0.5), (3.0, -0.5)), ())
    """
    spec = registry.spec_of(activation)
    if spec.opaque:
        return None
    facts = registry.entry(spec.name).facts_for(spec.arguments)
    if not facts.kinks and (facts.smoothness is None or facts.smoothness < 1):
        return None
    return facts.kinks


def jump_sizes(activation: nn.Module, kinks: Jumps, x: Tensor, registry: ActivationRegistry) -> list[Tensor | float]:
    """Return ``|jump of f'|`` at every kink, as the activation is now.

    Args:
        activation: The activation.
        kinks: As `kinks_of`.
        x: An input, whose shape the activation's parameters fit.
        registry: Where closed forms are looked up.

    Returns:
        Numbers for what has no parameters; else tensors that broadcast against ``x``, from f' on both sides.
    """
    if next(activation.parameters(), None) is None:
        return [abs(jump) for _, jump in kinks]
    sizes: list[Tensor | float] = []
    for place, _ in kinks:
        step = _NEXT_TO_A_KINK * max(1.0, abs(place))
        right, left = (
            derivative(activation, torch.full_like(x[:1], side), 1, registry=registry).detach()
            for side in (place + step, place - step)
        )
        sizes.append((right - left).abs())
    return sizes


def weighted_window_counts(
    x: Tensor,
    finite: Tensor,
    kinks: Jumps,
    sizes: list[Tensor | float],
    half_width: Tensor,
    total: Totals,
) -> Tensor:
    """Sum ``|jump| [|x - place| <= h] / 2h`` over the finite elements and the kinks.

    Divided by the count this estimates the kink mass ``sum_k |jump_k| p(x_k)``, ``p`` the density of the
    pre-activations: a uniform kernel. Its bias is ``h^2 p''(x_k) / 6`` for each kink to leading order, for a normal
    density at its mean ``-h^2 / 6 s^2`` of it, which is -1.0 % with `WINDOW`; its variance is ``p / 2hn``.

    Args:
        x: Pre-activations, finite, ``[sites, ...]``.
        finite: 1 for elements that count, 0 for others.
        kinks: As `kinks_of`.
        sizes: As `jump_sizes`.
        half_width: ``h`` of each site, ``[sites]``.
        total: Sums tensors like ``x`` by site.

    Returns:
        One number a site; NaN where ``h`` is 0, since the density of a constant is no number.

    Source: Silverman 1986, Density Estimation for Statistics and Data Analysis, sections 2.3 and 3.3.
    """
    h = half_width.reshape(-1, *[1] * (x.dim() - 1)).to(x.dtype)
    sums = torch.zeros_like(half_width)
    for (place, _), size in zip(kinks, sizes, strict=True):
        inside = (x - place).abs_().le_(h).mul_(finite)
        sums = sums + (total(inside * size) if isinstance(size, Tensor) else size * total.count(inside))
    return sums / torch.where(half_width > 0, 2 * half_width, torch.nan)
