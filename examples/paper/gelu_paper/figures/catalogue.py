"""The paper's figures 1 to 7, drawn from records."""

from collections.abc import Sequence

from gelu_paper.errors import PaperArgumentError
from gelu_paper.figures.curves import CURVE_FIGURES, draw_curves
from gelu_paper.figures.drawing import Drawing, FigureOptions
from gelu_paper.figures.functions import draw_functions
from gelu_paper.figures.robustness import draw_robustness
from gelu_paper.protocol.experiments import EXPERIMENTS, Experiment
from gelu_paper.protocol.presets import preset
from gelu_paper.records.run_record import RunRecord

FUNCTIONS, ROBUSTNESS = "functions", "mnist_robustness"
_CURVES = {figure.number: figure for figure in CURVE_FIGURES}
# What each figure is called beside its number: the experiment's name where it shows one's curves.
FIGURES = dict(
    sorted({1: FUNCTIONS, 3: ROBUSTNESS, **{number: figure.experiment for number, figure in _CURVES.items()}}.items())
)


def numbers_of(names: Sequence[str] | None) -> list[int]:
    """Return the numbers, in ascending order, of figures given by number or by name; ``None`` means all."""
    if names is None:
        return list(FIGURES)
    known = {str(number): number for number in FIGURES} | {name: number for number, name in FIGURES.items()}
    unknown = [name for name in names if name not in known]
    if unknown:
        accepted = ", ".join(f"{number} ({name})" for number, name in FIGURES.items())
        raise PaperArgumentError(f"No figure {', '.join(map(repr, unknown))}. Accepted: {accepted}.")
    return sorted({known[name] for name in names})


def draw(number: int, records: Sequence[RunRecord], options: FigureOptions | None = None) -> Drawing:
    """Draw one of the paper's figures, 1 to 7; the records are of one preset."""
    options = options or FigureOptions()
    if number == 1:
        return draw_functions()
    (number,) = numbers_of([str(number)])
    name = FIGURES[number]
    experiment = _experiment("mnist" if name == ROBUSTNESS else name, records)
    if name == ROBUSTNESS:
        return draw_robustness(experiment, records, options)
    return draw_curves(_CURVES[number], experiment, records, options)


def _experiment(name: str, records: Sequence[RunRecord]) -> Experiment:
    """Return an experiment of the preset that its records are of."""
    names = sorted({record.preset for record in records if record.experiment == name})
    if len(names) > 1:
        raise PaperArgumentError(
            f"The runs of {name!r} are of the presets {', '.join(names)}; a figure shows one. Keep them in folders of "
            "their own."
        )
    return preset(names[0]).get(name, EXPERIMENTS[name]) if names else EXPERIMENTS[name]
