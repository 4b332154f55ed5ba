"""What activations make of normally distributed pre-activations.

Sources of the closed forms: Stein's identity ``E (x - m) g = s^2 E g'`` (Stein 1981, The Annals of Statistics 9),
products of Gaussian densities, which are Gaussian again, and for ``E Phi^2`` Owen 1956 (The Annals of Mathematical
Statistics 27).
"""

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lit_gelu.activations.errors import ActivationArgumentError, NoGaussianMomentsError
from lit_gelu.activations.naming.name_table import Names, default_names
from lit_gelu.activations.naming.scalar import derivatives_of, keep_one_channel_
from lit_gelu.activations.naming.spec import ActivationSpec
from lit_gelu.activations.numerics.normal import CANCELLED, GaussianMoments, density, kink_mass
from lit_gelu.activations.numerics.sampling import sign_changes

_ROUNDED = 1e-28  # a variance this much smaller than the square is that of float64's last digit: f is constant

Integrands = Callable[[Tensor], Tensor]

REACH = 37.0  # standard deviations; a little further the density is no normal number of float64
_NODES, _WEIGHTS = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(24))
_TOLERANCE = 1e-13
_NOISE = 1e-6
_NOTHING = 1e-280  # integrals below this have lost digits to subnormal numbers
_LEVELS = 60
_ACTIVE_PANELS = 4096


def normal_rule(integrands: Integrands, mean: float, std: float, breaks: Sequence[float] = ()) -> tuple[Tensor, Tensor]:
    """Return nodes and weights with ``sum(w g(x)) = E g(x)``, ``x ~ N(mean, std^2)``, that suit all given integrands.

    Gauss-Legendre with 24 nodes on panels that are halved until, for every integrand, a panel and its halves agree to
    1e-13 of ``E |g|``: kinks and jumps are found by themselves and cost some 30 halvings each. (One that is nearer to
    the end of a panel than 0.3 % of its width goes unseen, at an error up to 1e-6: name known ones in ``breaks``.) The
    first panels end at every standard deviation, at the whole numbers up to 16 and at the powers of 2 on both sides
    of 0, so that neither a large standard deviation nor a steep function hides what happens about 0.

    A function with noise of its own (computed in float32 somewhere) is integrated as well as the noise allows.

    Args:
        integrands: From nodes of shape ``(n,)`` to values of shape ``(k, n)``, float64.
        mean: Of x.
        std: Of x, positive.
        breaks: Places where an integrand is known not to be smooth.

    Returns:
        Nodes and weights, both of shape ``(n,)``, float64; the weights contain the density.

    Raises:
        NoGaussianMomentsError: If a value is not finite, or panels still disagree by more than 1e-6 in the end.

    Example:
        >>> x, w = normal_rule(lambda x: x.abs()[None], 0.5, 1.0)
        >>> round((w * x.abs()).sum().item(), 12)
        0.895593114803
    """
    panels = _first_panels(mean, std, breaks)
    coarse = _integrate(integrands, *_nodes(panels, mean, std))[0]
    settled: list[tuple[Tensor, Tensor]] = []
    size = torch.zeros(len(coarse), dtype=torch.float64)
    for level in range(_LEVELS):
        left, right = panels.unbind(-1)
        middle = (left + right) / 2
        halves = torch.stack([torch.stack([left, middle], -1), torch.stack([middle, right], -1)], 1)
        nodes, weights = _nodes(halves, mean, std)
        fine, magnitude = _integrate(integrands, nodes, weights)
        error = (fine.sum(-1) - coarse).abs()
        total = size + magnitude.sum((-1, -2))
        rough = (error > _TOLERANCE * total[:, None] + _NOTHING).any(0)
        if level == _LEVELS - 1 or int(rough.sum()) > _ACTIVE_PANELS:
            _check_noise(error.sum(-1), total)
            rough = torch.zeros_like(rough)
        settled.append((nodes[~rough].flatten(), weights[~rough].flatten()))
        if not bool(rough.any()):
            break
        size = size + magnitude[:, ~rough].sum((-1, -2))
        panels, coarse = halves[rough].flatten(0, 1), fine[:, rough].flatten(1)
    x, w = (torch.cat(parts) for parts in zip(*settled, strict=True))
    return x, w


def _first_panels(mean: float, std: float, breaks: Sequence[float]) -> Tensor:
    """Return the panels to start with, one row ``(left, right)`` each."""
    low, high = mean - REACH * std, mean + REACH * std
    powers = [2.0**k for k in range(-24, max(5, math.ceil(math.log2(max(-low, high, 1.0)))))]
    marks = [*range(-16, 17), *powers, *(-power for power in powers), *breaks]
    steps = torch.linspace(low, high, round(2 * REACH) + 1, dtype=torch.float64)
    inner = torch.tensor([mark for mark in marks if low < mark < high], dtype=torch.float64)
    edges = torch.cat([steps, inner]).sort().values  # a panel of width 0 does no harm
    return torch.stack([edges[:-1], edges[1:]], -1)


def _nodes(panels: Tensor, mean: float, std: float) -> tuple[Tensor, Tensor]:
    """Return nodes and weights of shape ``(..., 24)`` for panels of shape ``(..., 2)``."""
    left, right = panels[..., :1], panels[..., 1:]
    half = (right - left) / 2
    x = (left + right) / 2 + half * _NODES
    return x, half * _WEIGHTS * density((x - mean) / std) / std


def _integrate(integrands: Integrands, nodes: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the integrals of all integrands over every panel, and those of their absolute values."""
    values = integrands(nodes.flatten())
    if not bool(values.isfinite().all()):
        bad = nodes.flatten()[~values.isfinite().all(0)]
        raise NoGaussianMomentsError(
            f"The function, a derivative or a square of these is not finite at x = {bad[0].item():.6g}, so "
            "there are no moments in float64. Accepted: functions that are finite on the whole line."
        )
    products = values.reshape(-1, *nodes.shape) * weights
    return products.sum(-1), products.abs().sum(-1)


def _check_noise(error: Tensor, size: Tensor) -> None:
    """Refuse an integral that has not settled."""
    excess = error / (size + _NOTHING)
    if bool((excess > _NOISE).any()):
        raise NoGaussianMomentsError(
            f"The quadrature does not settle: halved panels disagree by {excess.max().item():.1e} of the whole, and "
            f"{_NOISE:.0e} is accepted. Is the function random in evaluation mode, or has it very many jumps?"
        )


def quadrature_moments(
    module: nn.Module,
    mean: Tensor,
    std: Tensor,
    kinks: Sequence[tuple[float, float]] = (),
    *,
    registry: Names | None = None,
) -> GaussianMoments:
    """Return the moments of any elementwise activation by adaptive quadrature; see `quadrature.normal_rule`."""
    # ``E f^2``, ``E f'^2`` and the variance are sums of positive terms, so they are accurate to 1e-12 of themselves
    # however small they are. `kink` counts the declared kinks alone.
    mean, std = mean + torch.zeros_like(std), std + torch.zeros_like(mean)

    derivatives = derivatives_of(module, registry)

    def bend(x: Tensor) -> Tensor:
        return derivatives(x, 2).detach()

    def values(x: Tensor) -> Tensor:
        f, slope = derivatives(x, 0).detach(), derivatives(x, 1).detach()
        return torch.stack([f, f * f, slope, slope * slope, bend(x)])

    places = [place for place, _ in kinks]
    rows = []
    for m, s in zip(mean.flatten().tolist(), std.flatten().tolist(), strict=True):
        x, weights = normal_rule(values, m, s, places)
        at_nodes = values(x)
        f, f_squared, slope, slope_squared, _ = (at_nodes @ weights).unbind()
        variance = (at_nodes[0] - f).square() @ weights
        variance = torch.where(variance > _ROUNDED * f_squared, variance, 0.0)
        abs_bend = _expectation_of_size(bend, m, s, places, x)
        rows.append(torch.stack([f, f_squared, variance, slope, slope_squared, abs_bend]))
    columns = torch.stack(rows).reshape(*mean.shape, -1).unbind(-1) if rows else (mean,) * 6
    return GaussianMoments(*(*columns, kink_mass(mean, std, kinks)))


def _expectation_of_size(g: Callable[[Tensor], Tensor], m: float, s: float, places: list[float], x: Tensor) -> Tensor:
    """Return ``E |g|``, split where g changes sign between two nodes: a corner next to a panel's end goes unseen."""
    grid = x.sort().values
    values = g(grid)
    turns = sign_changes(g, grid, values, values.abs() > 1e-12 * values.abs().max())
    nodes, weights = normal_rule(lambda x: g(x).abs()[None], m, s, [*places, *turns])
    return torch.dot(g(nodes).abs(), weights)


__all__ = ["GaussianMoments", "gaussian_moments", "normal_rule", "scalar_function"]

Kinks = tuple[tuple[float, float], ...]

_HOW_IT_IS_COMPUTED = frozenset({
    "inplace",
    "memory",
    "learnable",
    "channels",
    "channel_dim",
    "num_parameters",
})


def gaussian_moments(
    activation: Any,
    mean: float | Tensor = 0.0,
    std: float | Tensor = 1.0,
    *,
    registry: Names | None = None,
) -> GaussianMoments:
    """Return what an activation makes of ``x ~ N(mean, std^2)``.

    Closed forms for exact GELU (also with its own mean and standard deviation) and for the piecewise activations, where
    they do not cancel; adaptive quadrature for all else. ``E f^2``, ``E f'^2`` and the variance are accurate to 1e-11
    of themselves, also where the activation is nearly dead or nearly linear. Where it saturates at a value other than
    0, such as ``elu`` at ``N(-20, 0.5^2)``, the variance is accurate to 1e-8 of itself. Beyond
    ``|mean| / std`` of 1e6 the digits of x itself limit all of them.

    Args:
        activation: Any spec of an elementwise activation, whose learned parameters count as they start; of a module
            with parameters they count as they are now.
        mean: Of the pre-activations; a number or a tensor.
        std: Their standard deviation, positive.
        registry: Where names are looked up; by default `lit_gelu.activations.registry`.

    Returns:
        The moments, float64, of the broadcast shape, on the CPU. A stochastic activation counts in evaluation mode.

    Raises:
        ActivationArgumentError: If ``std`` is not positive or a number not finite, or it is not elementwise.
        NoGaussianMomentsError: If the activation is not finite everywhere.

    Example:
        >>> moments = gaussian_moments("silu", mean=0.0, std=torch.tensor([0.5, 1.0]))
        >>> [round(value, 8) for value in moments.derivative_squared.tolist()]
        [0.30030799, 0.37948235]
    """
    registry = registry or default_names()
    mean, std = (torch.as_tensor(part, dtype=torch.float64).detach().cpu() for part in (mean, std))
    if not bool((std > 0).all() & std.isfinite().all() & mean.isfinite().all()):
        raise ActivationArgumentError(
            f"mean={mean.tolist()}, std={std.tolist()} is not accepted: give finite numbers and a positive std."
        )
    spec = registry.resolve(activation)
    has_parameters = isinstance(activation, nn.Module) and any(True for _ in activation.parameters())
    closed = None if spec.opaque or has_parameters else _closed_form(spec, mean, std, registry)
    if closed is not None and bool(closed[1].all()):
        return closed[0]
    module, kinks = scalar_function(activation, registry=registry)
    if closed is None:
        return quadrature_moments(module, mean, std, kinks, registry=registry)
    moments, good = closed
    means, stds = mean + torch.zeros_like(std), std + torch.zeros_like(mean)
    rest = quadrature_moments(module, means[~good], stds[~good], kinks, registry=registry)
    joined = [field.clone() for field in moments.fields]
    for field, values in zip(joined, rest.fields, strict=True):
        field[~good] = values
    joined[-1] = torch.where(moments.kink.isnan(), joined[-1], moments.kink)  # quadrature knows of stated kinks alone
    return GaussianMoments(*joined)


def scalar_function(activation: Any, *, registry: Names | None = None) -> tuple[nn.Module, Kinks]:
    """Return an elementwise activation as a float64 module in evaluation mode, and its kinks.

    Args:
        activation: Any spec.
        registry: Where names are looked up; by default `lit_gelu.activations.registry`.

    Returns:
        A module of its own, and ``(x, jump of f')`` for every kink; none is known of what was never registered, nor of
        a module whose parameters may have moved.

    Raises:
        ActivationArgumentError: If the activation is not elementwise, or its channels have different values.

    Example:
        >>> scalar_function("hard_swish")
        (Hardswish(), ((-3.0, -0.5), (3.0, -0.5)))
    """
    registry = registry or default_names()
    spec = registry.resolve(activation)
    module = copy.deepcopy(activation) if isinstance(activation, nn.Module) else registry.create(activation)
    module = module.to(device="cpu", dtype=torch.float64).eval()
    kinks: Kinks = ()
    if not spec.opaque:
        facts = registry.entry(spec.name).facts_for(spec.arguments)
        if not facts.elementwise:
            raise ActivationArgumentError(f"{spec} is not elementwise, so it has no moments or gains of its own.")
        moved = isinstance(activation, nn.Module) and any(True for _ in activation.parameters())
        kinks = () if moved else facts.kinks
    keep_one_channel_(module, registry=registry)
    return module, kinks


def _closed_form(
    spec: ActivationSpec, mean: Tensor, std: Tensor, registry: Names
) -> tuple[GaussianMoments, Tensor] | None:
    """Return the moments in closed form and where they hold, or ``None`` where there is none."""
    form = registry.entry(spec.name).moments
    arguments = {key: value for key, value in spec.arguments.items() if key not in _HOW_IT_IS_COMPUTED}
    numbers = [abs(value) for value in arguments.values() if isinstance(value, (int, float))]
    if form is None or len(numbers) < len(arguments) or not _accepts(form, arguments):
        return None  # a value for every channel, or a word that makes it another function
    moments = form(mean, std, **arguments)
    scale = max([1.0, *numbers]) ** 2
    terms = scale * (1 + mean**2 + std**2)
    defined = ~torch.stack([torch.as_tensor(field).isnan().expand_as(terms) for field in moments.fields]).any(0)
    # A small difference of large terms, which are of the order of scale E (1 + x^2), has lost its digits.
    good = defined & (moments.variance > CANCELLED * terms) & (moments.derivative_squared > CANCELLED * scale)
    return moments, good


def _accepts(form: Callable[..., GaussianMoments], arguments: Mapping[str, object]) -> bool:
    """Return whether a closed form takes these arguments of its activation."""
    taker = getattr(form, "pieces", form)  # `PiecewiseMoments` takes any arguments and hands them on to its pieces
    try:
        return not arguments or inspect.signature(taker).bind_partial(**arguments) is not None
    except TypeError:  # they do not fit, or the pieces depend on none
        return False
