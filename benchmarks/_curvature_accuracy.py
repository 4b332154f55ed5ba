"""How far warm-started eigenvalues are from converged ones of the same probe, along a run."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from _curvature_nets import Net
from _curvature_runs import Timed, fit
from lightning.pytorch import Callback

from lit_gelu.callbacks import LossCurvatureMonitor

DEFAULT = "default"
CONVERGED = "converged"
WAYS: Mapping[str, Mapping[str, Any]] = {
    **{f"{count} products": {"warm_steps": count, "accuracy": None} for count in (1, 2, 3, 4, 6, 8)},
    DEFAULT: {},
    "accuracy=0.01": {"accuracy": 0.01},
    CONVERGED: {"warm_steps": 40, "lanczos_steps": 40, "accuracy": None},
}
"""Arguments of the monitors, all of which see the same probes."""


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
    made = {
        way: LossCurvatureMonitor(every_n_steps=interval, name=way.replace(" ", "_"), **options)
        for way, options in WAYS.items()
    }
    collected, timed = Collected(made), {way: Timed(monitor) for way, monitor in made.items()}
    clock = fit(model, data, [*timed.values(), collected], steps)
    gradient = statistics.median(clock.gradients[1:])
    events = collected.events[1:]  # the first one is not warm
    found = {way: [event[way]["top_eigenvalue"] for event in events] for way in WAYS}
    exact = found.pop(CONVERGED)
    worst = max(
        event[CONVERGED]["top_eigenvalue_residual"] / abs(event[CONVERGED]["top_eigenvalue"]) for event in events
    )
    print(
        f"\n{name}: {steps} steps, {len(events)} warm events {interval} steps apart, on an eighth of the batch; "
        f"converged eigenvalue {min(exact):.4g} to {max(exact):.4g}, largest residual {worst:.1e} of it"
    )
    titles = ("products", "gradients", "median error", "90 %", "largest", "within 5 %", "within 1 %")
    print(f"{'':<14}" + "".join(f"{title:>13}" for title in titles))
    for way, values in found.items():
        errors = sorted(abs(value / other - 1) for value, other in zip(values, exact, strict=True))
        products = statistics.mean(event[way]["products"] for event in events)
        cost = statistics.median(timed[way].steps[2 * interval - 1 :: interval]) / gradient
        print(
            f"{way:<14}{products:>13.1f}{cost:>13.2f}{statistics.median(errors):>13.2%}"
            f"{errors[int(0.9 * (len(errors) - 1))]:>13.2%}{errors[-1]:>13.2%}"
            f"{_share(errors, 0.05):>13}{_share(errors, 0.01):>13}"
        )


def _share(errors: Sequence[float], limit: float) -> str:
    return f"{sum(error <= limit for error in errors)}/{len(errors)}"
