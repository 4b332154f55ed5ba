"""What activations make of normally distributed pre-activations.

Sources of the closed forms: Stein's identity ``E (x - m) g = s^2 E g'`` (Stein 1981, The Annals of Statistics 9),
products of Gaussian densities, which are Gaussian again, and for ``E Phi^2`` Owen 1956 (The Annals of Mathematical
Statistics 27).
"""

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.gaussian.quadrature import normal_rule, quadrature_moments
from lit_gelu.activations.naming.names import Names, default_names
from lit_gelu.activations.naming.scalar import keep_one_channel_
from lit_gelu.activations.naming.spec import ActivationSpec
from lit_gelu.activations.numerics.normal import CANCELLED, GaussianMoments

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
    mean, std = _checked(mean, std)
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


def _checked(mean: float | Tensor, std: float | Tensor) -> tuple[Tensor, Tensor]:
    """Return both as float64 tensors on the CPU."""
    m, s = (torch.as_tensor(part, dtype=torch.float64).detach().cpu() for part in (mean, std))
    if not bool((s > 0).all() & s.isfinite().all() & m.isfinite().all()):
        raise ActivationArgumentError(
            f"mean={m.tolist()}, std={s.tolist()} is not accepted: give finite numbers and a positive std."
        )
    return m, s


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
    return moments, _holds(moments, mean, std, max([1.0, *numbers]) ** 2)


def _accepts(form: Callable[..., GaussianMoments], arguments: Mapping[str, object]) -> bool:
    """Return whether a closed form takes these arguments of its activation."""
    taker = getattr(form, "pieces", form)  # `PiecewiseMoments` takes any arguments and hands them on to its pieces
    try:
        return not arguments or inspect.signature(taker).bind_partial(**arguments) is not None
    except TypeError:  # they do not fit, or the pieces depend on none
        return False


def _holds(moments: GaussianMoments, mean: Tensor, std: Tensor, scale: float) -> Tensor:
    """Return where no moment is NaN or a small difference of large terms, of the order of ``scale E (1 + x^2)``."""
    terms = scale * (1 + mean**2 + std**2)
    known = ~torch.stack([torch.as_tensor(field).isnan().expand_as(terms) for field in moments.fields]).any(0)
    return known & (moments.variance > CANCELLED * terms) & (moments.derivative_squared > CANCELLED * scale)
