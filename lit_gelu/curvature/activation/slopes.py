"""Where the slope of an activation has a sign or a size: found once, in float64, by its formula."""

import itertools
import math
from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.analysis.sampling import sampling_grid, sign_changes
from lit_gelu.curvature.activation.derivatives import joint_derivatives
from lit_gelu.curvature.activation.kinks import kinks_of
from lit_gelu.errors import LitGeluError

Intervals = list[tuple[float, float]]

_CLEAR = 1e-12  # f' - c or f'' below this is rounding

_decreasing: WeakKeyDictionary[ActivationRegistry, dict[str, tuple[object, Intervals | None]]] = WeakKeyDictionary()


class Slopes:
    """Where f' of an activation without parameters passes thresholds, and where f'' passes 0.

    Args:
        activation: The activation.
        registry: Where it is looked up.

    Attributes:
        joint: f, f', f'' and gate in float64.
        kinks: Where f' jumps, sorted.
        turns: Where f'' changes its sign.
        grid: Points at which f' can be judged, sorted.
        first: f' there.

    Raises:
        LitGeluError: If f' is finite nowhere.

    Example:
        >>> from lit_gelu.activations import registry
        >>> ((low, high),) = Slopes(nn.GELU(), registry).intervals([0.0], lambda first: first < 0)
        >>> low, round(high, 12)
        (-inf, -0.751791524694)
    """

    def __init__(self, activation: nn.Module, registry: ActivationRegistry) -> None:
        module = registry.create(str(registry.spec_of(activation))).double().eval()
        self.joint = joint_derivatives(module, registry)
        self.kinks = [place for place, _ in kinks_of(module, registry) or ()]
        self.grid = sampling_grid([self.slope], corners=self.kinks)
        self.first, second = self.slope(self.grid), self._bend(self.grid)
        self.turns = sign_changes(self._bend, self.grid, second, second.abs() > _CLEAR)

    def slope(self, x: Tensor) -> Tensor:
        """Return f'.

        Args:
            x: Places, float64.

        Returns:
            The slope at each.
        """
        return self.joint(x).first

    def intervals(self, thresholds: Sequence[float], holds: Callable[[Tensor], Tensor]) -> Intervals:
        """Return where a condition on f' holds.

        What fades to nothing, so that float64 has no sign for it, is taken to be as it was where it still had one.

        Args:
            thresholds: At which values of f' the condition may begin or end.
            holds: The condition.

        Returns:
            The intervals, sorted.
        """
        crossings = [x for threshold in thresholds for x in self._crossings(threshold)]
        places = sorted({*self.kinks, *crossings})
        if not places:
            ends, inner = [-math.inf, math.inf], [0.0]
        else:
            ends = [-math.inf, *places, math.inf]
            inner = [places[0] - 1, *((a + b) / 2 for a, b in itertools.pairwise(places)), places[-1] + 1]
        chosen = holds(self.slope(torch.tensor(inner, dtype=torch.float64))).tolist()
        return [pair for pair, good in zip(itertools.pairwise(ends), chosen, strict=True) if good]

    def _crossings(self, threshold: float) -> list[float]:
        above = self.first - threshold
        return sign_changes(lambda x: self.slope(x) - threshold, self.grid, above, above.abs() > _CLEAR)

    def _bend(self, x: Tensor) -> Tensor:
        return self.joint(x).second


def where_decreasing(activation: nn.Module, registry: ActivationRegistry) -> Intervals | None:
    """Return where f' < 0 by the formula, however small it is; found once for each activation of a registry.

    Args:
        activation: The activation.
        registry: Where it is looked up.

    Returns:
        Open intervals; ``None`` of what was never registered, or has parameters or buffers of its own.

    Example:
        >>> from lit_gelu.activations import registry
        >>> where_decreasing(nn.ReLU(), registry)
        []
        >>> ((low, high),) = where_decreasing(nn.SiLU(), registry)
        >>> low, round(high, 12)
        (-inf, -1.278464542761)
    """
    spec = registry.spec_of(activation)
    if spec.opaque or any(True for _ in activation.parameters()) or any(True for _ in activation.buffers()):
        return None
    entry, known = registry.entry(spec.name), _decreasing.setdefault(registry, {})
    found = known.get(str(spec))
    if found is None or found[0] is not entry:  # a name may come to mean another activation
        try:
            intervals = Slopes(activation, registry).intervals([0.0], lambda first: first < 0)
        except LitGeluError:  # it is finite nowhere: its sums are not either
            intervals = None
        found = known[str(spec)] = entry, intervals
    return found[1]
