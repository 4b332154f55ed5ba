"""Figure 3: accuracy and log loss of the MNIST classifiers under uniform noise on their inputs."""

from collections.abc import Mapping, Sequence

from gelu_paper.figures import drawing
from gelu_paper.figures.drawing import Drawing, FigureOptions
from gelu_paper.protocol.experiments import Experiment
from gelu_paper.records.run_record import RunRecord
from gelu_paper.results.labels import labels_of
from gelu_paper.results.medians import MedianCurve, median_robustness
from gelu_paper.results.selection import ArmChoice, choices

NUMBER = 3
_UNITS = ("test accuracy (%)", "test log loss (nats)")


def draw_robustness(experiment: Experiment, records: Sequence[RunRecord], options: FigureOptions) -> Drawing:
    """Draw figure 3: the nets trained without dropout, at the learning rate that is reported for them."""
    # The paper printed no number of this figure, so there are no published points to mark.
    found = {arm: _measured(experiment, arm, records) for arm in options.arms}
    curves = {arm: measured for arm, measured in found.items() if measured is not None}
    missing = tuple(drawing.name_of(arm) for arm in options.arms if arm not in curves)
    if not curves:
        return Drawing(NUMBER, None, missing)
    shown = [run for choice, _, _ in curves.values() for run in choice.chosen.runs]
    with drawing.style():
        canvas, axes = drawing.panels(NUMBER, "MNIST classification under uniform noise", labels_of(shown), 2)
        for arm, (_, error, loss) in curves.items():
            look = {"marker": ".", "markersize": 5, "color": drawing.colour(arm), "linewidth": drawing.DARK_WIDTH}
            for each, curve, mapped in ((axes[0], error, _accuracy), (axes[1], loss, float)):
                drawing.draw_median(each, curve, mapped, options, label=arm, clip_on=False, **look)
        for each, unit in zip(axes, _UNITS, strict=True):
            each.set_xlabel("noise strength a, uniform in [-a, a]")
            each.set_ylabel(unit)
            each.set_xlim(0, max(error.epoch[-1] for _, error, _ in curves.values()))
            each.set_ylim(bottom=0)
        axes[0].set_ylim(top=100)
        drawing.legend(canvas, list(curves))
        drawing.caption(canvas, _caption({arm: choice for arm, (choice, _, _) in curves.items()}))
    return Drawing(NUMBER, canvas, missing)


def _accuracy(error: float) -> float:
    """Return the accuracy, in per cent, that belongs to an error."""
    return 100 * (1 - error)


def _measured(
    experiment: Experiment, arm: str, records: Sequence[RunRecord]
) -> tuple[ArmChoice, MedianCurve, MedianCurve] | None:
    """Return an arm's nets with their error and loss under noise."""
    for choice in choices(experiment, arm, records):
        setting = choice.chosen.setting
        if all(setting.get(name) == value for name, value in experiment.robust_settings.items()):
            error, loss = (median_robustness(choice.chosen.runs, name) for name in ("error", "loss"))
            if error is not None and loss is not None:
                return choice, error, loss
    return None


def _caption(chosen: Mapping[str, ArmChoice]) -> str:
    """Say of how many nets, of which, and at which learning rates."""
    runs = drawing.runs_in_words(len(choice.chosen.runs) for choice in chosen.values())
    was_tuned = all(len(choice.candidates) > 1 for choice in chosen.values())
    rates = drawing.rates_in_words(
        [("", [(arm, choice.chosen.learning_rate) for arm, choice in chosen.items()])], was_tuned
    )
    return f"{runs} Nets without dropout, last epoch. {rates}"
