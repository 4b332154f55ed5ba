"""What is known of an activation by its formula: f, f', f'' and gate together, where f' jumps and where it is below 0.

Looking it up takes as long as a sum over all inputs of an activation, so `formulas_of` does it once for each site; what
has no parameters is taken to stay what it is.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.functional import derivative
from lit_gelu.activations.numerics.arguments import Derivatives, quotient
from lit_gelu.activations.numerics.sampling import sampling_grid, sign_changes
from lit_gelu.errors import LitGeluError

Jumps = tuple[tuple[float, float], ...]
"""``(place, jump)`` of every kink."""

Intervals = tuple[tuple[float, float], ...]

_NEXT_TO_A_KINK = 2.0**-20  # relative to max(1, |place|): far from a place's rounding, near enough for any f'
_CLEAR = 1e-12  # f' - c or f'' below this is rounding

_decreasing: WeakKeyDictionary[ActivationRegistry, dict[str, tuple[object, Intervals | None]]] = WeakKeyDictionary()


@dataclass
class Formulas:
    """An activation, and what was looked up of it."""

    activation: nn.Module  # its parameters are used as they are when it is evaluated
    registry: ActivationRegistry  # where it was looked up
    joint: Callable[[Tensor], Derivatives]  # as `joint_derivatives`
    kinks: Jumps | None  # as `kinks_of`
    decreasing: Intervals | None  # as `where_decreasing`
    # Whether elements that are not finite are masked. Taking away what zeros in their place add is cheaper, but
    # activations with state of their own, those that nobody registered, and those with an infinite f(0) need it.
    masks: bool
    of_one_zero: dict[tuple[torch.dtype, torch.device], Tensor] = field(default_factory=dict)  # see `measure`


def formulas_of(activation: nn.Module, registry: ActivationRegistry) -> Formulas:
    """Look an activation up."""
    joint, kinks = joint_derivatives(activation, registry), kinks_of(activation, registry)
    masks = has_own_state(activation) or registry.spec_of(activation).opaque
    masks = masks or not all(map(math.isfinite, torch.cat(joint(torch.zeros(1))[:3]).tolist()))
    return Formulas(activation, registry, joint, kinks, where_decreasing(activation, registry), masks)


def has_own_state(activation: nn.Module) -> bool:
    """Return whether a module has parameters or buffers."""
    return next(activation.parameters(), None) is not None or next(activation.buffers(), None) is not None


def evaluated(formulas: Formulas, x: Tensor, finite: Tensor) -> Derivatives:
    """Return f, f', f'' and gate at all elements of ``[sites, ...]``, which are 0 where ``finite`` is 0."""
    inner = x[0] if x.shape[0] == 1 else x  # a module with channels takes its input as it was
    parts = [each if each is None or each.shape == x.shape else each.reshape(x.shape) for each in formulas.joint(inner)]
    if formulas.masks:
        mask = finite > 0
        parts = [None if part is None else torch.where(mask, part, 0.0) for part in parts]
    return Derivatives(*parts)  # type: ignore[arg-type]  # only the gate may be None


def joint_derivatives(activation: nn.Module, registry: ActivationRegistry) -> Callable[[Tensor], Derivatives]:
    """Return the function that evaluates an activation and its derivatives together, of a float32 or float64 tensor."""
    # Without a joint form: closed forms one by one, or autograd; the gate is NaN throughout where f(0) is not 0.
    entry = registry.entry_of(activation)
    if entry is not None and entry.joint is not None and not has_own_state(activation):
        joint, arguments = entry.joint, entry.live_arguments(activation)
        if arguments is not None:
            return lambda x: Derivatives(*joint(x, **arguments))

    def one_by_one(x: Tensor) -> Derivatives:
        value, first, second = (derivative(activation, x, order, registry=registry).detach() for order in (0, 1, 2))
        at_zero = derivative(activation, torch.zeros_like(x[:1] if x.dim() else x), 0, registry=registry).detach()
        gate = quotient(value, x, first) + torch.where((at_zero == 0).all(), 0.0, torch.nan)
        return Derivatives(value, first, second, gate)

    return one_by_one


def kinks_of(activation: nn.Module, registry: ActivationRegistry) -> Jumps | None:
    """Return where f' jumps, and by how much at construction; ``None`` if that is not known."""
    spec = registry.spec_of(activation)
    if spec.opaque:
        return None
    facts = registry.entry(spec.name).facts_for(spec.arguments)
    if not facts.kinks and (facts.smoothness is None or facts.smoothness < 1):
        return None
    return facts.kinks


def jump_sizes(activation: nn.Module, kinks: Jumps, x: Tensor, registry: ActivationRegistry) -> list[Tensor | float]:
    """Return ``|jump of f'|`` at every kink, as it is now: numbers, or tensors that broadcast against ``x``."""
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


class Slopes:
    """Where f' of an activation without parameters passes thresholds, and where f'' passes 0, in float64."""

    def __init__(self, activation: nn.Module, registry: ActivationRegistry) -> None:
        module = registry.create(str(registry.spec_of(activation))).double().eval()
        self.joint = joint_derivatives(module, registry)
        self.kinks = [place for place, _ in kinks_of(module, registry) or ()]  # where f' jumps, sorted
        self.grid = sampling_grid([self.slope], corners=self.kinks)  # points at which f' can be judged, sorted
        self.first, second = self.slope(self.grid), self._bend(self.grid)
        self.turns = sign_changes(self._bend, self.grid, second, second.abs() > _CLEAR)  # where f'' changes its sign

    def slope(self, x: Tensor) -> Tensor:
        """Return f' at places in float64."""
        return self.joint(x).first

    def intervals(self, thresholds: Sequence[float], holds: Callable[[Tensor], Tensor]) -> Intervals:
        """Return the intervals where a condition on f' holds, which may change at the thresholds, kinks apart."""
        # What fades to nothing, so that float64 has no sign for it, is taken to be as it was where it still had one.
        crossings = [x for threshold in thresholds for x in self._crossings(threshold)]
        places = sorted({*self.kinks, *crossings})
        if not places:
            ends, inner = [-math.inf, math.inf], [0.0]
        else:
            ends = [-math.inf, *places, math.inf]
            inner = [places[0] - 1, *((a + b) / 2 for a, b in itertools.pairwise(places)), places[-1] + 1]
        chosen = holds(self.slope(torch.tensor(inner, dtype=torch.float64))).tolist()
        return tuple(pair for pair, good in zip(itertools.pairwise(ends), chosen, strict=True) if good)

    def _crossings(self, threshold: float) -> list[float]:
        above = self.first - threshold
        return sign_changes(lambda x: self.slope(x) - threshold, self.grid, above, above.abs() > _CLEAR)

    def _bend(self, x: Tensor) -> Tensor:
        return self.joint(x).second


def where_decreasing(activation: nn.Module, registry: ActivationRegistry) -> Intervals | None:
    """Return the open intervals where f' < 0 by the formula, however small it is; found once for a spec."""
    # None for an activation that was never registered, or has parameters or buffers of its own.
    spec = registry.spec_of(activation)
    if spec.opaque or has_own_state(activation):
        return None
    entry, cache = registry.entry(spec.name), _decreasing.setdefault(registry, {})
    cached = cache.get(str(spec))
    if cached is None or cached[0] is not entry:  # a name may come to mean another activation
        try:
            intervals = Slopes(activation, registry).intervals([0.0], lambda first: first < 0)
        except LitGeluError:  # it is finite nowhere: its sums are not either
            intervals = None
        cached = cache[str(spec)] = entry, intervals
    return cached[1]
