"""How far warm-started eigenvalues are from converged ones of the same probe, along a run."""

import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from _curvature_nets import Net
from _curvature_runs import Timed, fit
from lightning.pytorch import Callback

from lit_gelu.callbacks import LossCurvatureMonitor
from lit_gelu.curvature import ProductBudget

EIGHTH = {"fraction": 1 / 8}
EXACT = {"budget": ProductBudget(warm_steps=40, lanczos_steps=40, accuracy=None)}
FIXED = {"probe": "fixed"}
CONVERGED, CONVERGED_FIXED = "converged", "converged, fixed probe"
WAYS: Mapping[str, Mapping[str, Any]] = {
    **{f"{count} products": {"budget": ProductBudget(warm_steps=count, accuracy=None)} for count in (1, 2, 3, 4, 5, 6)},
    "default": {},
    "accuracy=0.01": {"budget": ProductBudget(accuracy=0.01)},
    CONVERGED: EXACT,
    "fixed, 1 product": {**FIXED, "budget": ProductBudget(warm_steps=1, accuracy=None)},
    "fixed, 2 products": {**FIXED, "budget": ProductBudget(warm_steps=2, accuracy=None)},
    "fixed, default": FIXED,
    CONVERGED_FIXED: {**FIXED, **EXACT},
}
"""Arguments of the monitors. All see the same fresh probes, or the same fixed one, and are compared with the converged
value of what they see."""


class Collected(Callback):
    """Keeps what several monitors found at each event.

    Args:
        monitors: The monitors.
    """

    def __init__(self, monitors: Mapping[str, LossCurvatureMonitor]) -> None:
        self.monitors = monitors
        self.events: list[dict[str, dict[str, float]]] = []

    def on_train_batch_end(self, *_: Any) -> None:
        """Keep the figures of a new event."""
        latest = {way: dict(monitor.latest) for way, monitor in self.monitors.items()}
        if all(latest.values()) and (not self.events or latest != self.events[-1]):
            self.events.append(latest)


def error_part(net: Net, steps: int, interval: int) -> None:
    """Print how far warm eigenvalues are from converged ones.

    Args:
        net: Name, model and data.
        steps: Steps of training.
        interval: Steps between events.
    """
    name, model, data = net
    monitors = {
        way: LossCurvatureMonitor(every_n_steps=interval, name=re.sub(r"\W+", "_", way), **EIGHTH, **options)
        for way, options in WAYS.items()
    }
    collected, timed = Collected(monitors), {way: Timed(monitor) for way, monitor in monitors.items()}
    clock = fit(model, data, [*timed.values(), collected], steps)
    gradient = statistics.median(clock.gradients[1:])
    events = collected.events[1:]  # the first one is not warm
    print(
        f"\n{name}: {steps} steps, {len(events)} warm events {interval} steps apart, on an eighth of the batch; "
        f"converged eigenvalue {_range_of(events, CONVERGED)}; of the fixed probe {_range_of(events, CONVERGED_FIXED)}"
    )
    titles = ("products", "gradients", "median error", "90 %", "largest", "within 5 %", "within 1 %")
    print(f"{'':<18}" + "".join(f"{title:>13}" for title in titles))
    for way in WAYS:
        if way not in {CONVERGED, CONVERGED_FIXED}:  # which the others are compared with
            seconds = statistics.median(timed[way].steps[2 * interval - 1 :: interval])
            _print_row(way, events, seconds / gradient)


def _values(events: Sequence[Mapping[str, Mapping[str, float]]], way: str) -> list[float]:
    return [
        value
        for event in events
        for name, value in event[way].items()
        if name in {"top_eigenvalue", "top_eigenvalue_finite_differences"}
    ]


def _range_of(events: Sequence[Mapping[str, Mapping[str, float]]], way: str) -> str:
    values = _values(events, way)
    worst = max(event[way]["top_eigenvalue_residual"] / abs(event[way]["top_eigenvalue"]) for event in events)
    return f"{min(values):.4g} to {max(values):.4g}, largest residual {worst:.1e} of it"


def _print_row(way: str, events: Sequence[Mapping[str, Mapping[str, float]]], cost: float) -> None:
    reference = CONVERGED_FIXED if way.startswith("fixed") else CONVERGED
    pairs = zip(_values(events, way), _values(events, reference), strict=True)
    errors = sorted(abs(value / exact - 1) for value, exact in pairs)
    products = statistics.mean(event[way]["products"] for event in events)
    print(
        f"{way:<18}{products:>13.1f}{cost:>13.2f}{statistics.median(errors):>13.2%}"
        f"{errors[int(0.9 * (len(errors) - 1))]:>13.2%}{errors[-1]:>13.2%}"
        f"{_share(errors, 0.05):>13}{_share(errors, 0.01):>13}"
    )


def _share(errors: Sequence[float], limit: float) -> str:
    return f"{sum(error <= limit for error in errors)}/{len(errors)}"
