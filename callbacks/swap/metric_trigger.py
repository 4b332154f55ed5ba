"""`MetricTrigger`: says, from a metric measured again and again, when to swap."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from lit_gelu.callbacks.errors import CallbackArgumentError

Mode = Literal["min", "max"]


@dataclass
class MetricTrigger:
    """Fires once a metric has stopped improving, or has reached a value.

    A check improves if it is better than the best so far by more than ``threshold``; NaN never is. It fires at the
    ``patience``-th check in a row that does not improve, as `EarlyStopping` stops.

    Args:
        mode: Whether smaller (``"min"``) or larger (``"max"``) is better.
        patience: Checks without improvement.
        threshold: What counts as an improvement, in the metric's unit.
        reaches: Fire at the first check as good as this value instead.

    Example:
        >>> trigger = MetricTrigger(patience=2)
        >>> [trigger.check(value) for value in (3.0, 2.0, 2.5, 2.0)]
        [False, False, False, True]
    """

    mode: Mode = "min"
    patience: int = 3
    threshold: float = 0.0
    reaches: float | None = None
    best: float = field(default=math.nan, init=False)
    waited: int = field(default=0, init=False)
    fired: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.mode not in {"min", "max"}:
            raise CallbackArgumentError(f"mode={self.mode!r} is not accepted. Give 'min' or 'max'.")
        if isinstance(self.patience, bool) or not isinstance(self.patience, int) or self.patience < 1:
            raise CallbackArgumentError(f"patience={self.patience!r} is not accepted. Give an integer of at least 1.")
        if not (0 <= self.threshold < math.inf):
            raise CallbackArgumentError(f"threshold={self.threshold!r} is not accepted. Give a finite number from 0.")

    def check(self, value: float) -> bool:
        """Take another value of the metric.

        Args:
            value: The value.

        Returns:
            Whether the trigger has fired, now or before.
        """
        sign = 1 if self.mode == "min" else -1
        if self.reaches is not None:
            self.fired = self.fired or sign * value <= sign * self.reaches
            return self.fired
        if math.isnan(self.best) or sign * value < sign * self.best - self.threshold:
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        self.fired = self.fired or self.waited >= self.patience
        return self.fired

    def state_dict(self) -> dict[str, Any]:
        """Return what the checks so far have come to, as plain data."""
        return {"best": self.best, "waited": self.waited, "fired": self.fired}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state.

        Args:
            state: What `state_dict` returned.
        """
        self.best, self.waited, self.fired = state["best"], state["waited"], state["fired"]
