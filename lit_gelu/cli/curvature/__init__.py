"""``lit-gelu curvature``: measure the activations' and the loss's curvature of a checkpoint, and draw it."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

from lit_gelu.cli.options import add_data, add_input_shape, add_json, add_model, command_parser
from lit_gelu.cli.terminal import console_for_output, silence_known_warnings, write_text
from lit_gelu.errors import LitGeluError
from lit_gelu.extras import need

if TYPE_CHECKING:
    from lit_gelu.cli.curvature.checkpoint import Settings

QUANTITIES = ("activations", "top_eigenvalue", "smallest_eigenvalue", "trace", "spectral_density")
_FORMATS = (".png", ".pdf", ".svg")
EXAMPLES = """\
quantities:
  activations           each activation's input and slope, beside what a normal input of the same mean and deviation
                        would give
  top_eigenvalue        the Hessian's largest, by Lanczos iteration
  smallest_eigenvalue   the smallest, from the same products
  trace                 the sum of its eigenvalues with standard error, by layer, and its Frobenius norm
  spectral_density      where its eigenvalues lie, by stochastic Lanczos quadrature

examples:
  lit-gelu curvature last.ckpt --data DigitsData
  lit-gelu curvature last.ckpt --data MNISTData --data-root data --samples 2048 --figure curvature.png
  lit-gelu curvature last.ckpt --data DigitsData --quantities activations trace --json all.json --csv all.csv
  lit-gelu curvature last.ckpt --data DigitsData --json | jq .eigenvalues
  lit-gelu curvature last.ckpt --data DigitsData --operator gauss_newton --split test
  lit-gelu curvature last.ckpt --data my_package.MyData --model my_package.MyModule --mode train
"""
ARGUMENTS = {"input_sample": "--input-shape"}


class CurvatureCommandError(LitGeluError, ValueError):
    """Arguments that cannot be measured with."""


def build_parser() -> ArgumentParser:
    """Return the command's parser."""
    parser = command_parser("curvature", EXAMPLES)
    parser.add_argument("ckpt", type=str, help="a Lightning checkpoint, or a model's class for one that is untrained")
    add_data(parser, "such as DigitsData or MNISTData", required=True)
    add_model(parser)
    add_input_shape(parser)
    parser.add_argument("--split", choices=("train", "val", "test"), default="train", help="which of the data to use")
    parser.add_argument(
        "--samples", type=int, default=1024, metavar="ROWS", help="how many examples: those that its loader gives first"
    )
    parser.add_argument("--seed", type=int, default=0, help="of a shuffling loader's order, and of all random vectors")
    parser.add_argument(
        "--quantities",
        type=str,
        nargs="+",
        default=list(QUANTITIES),
        metavar="QUANTITY",
        help="which of those below; default: all",
    )
    parser.add_argument(
        "--operator", choices=("hessian", "gauss_newton"), default="hessian", help="whose eigenvalues and trace"
    )
    parser.add_argument(
        "--mode",
        choices=("eval", "train"),
        default="eval",
        help="train: dropout and batch statistics in the loss's passes",
    )
    parser.add_argument(
        "--lanczos-steps", type=int, default=40, metavar="COUNT", help="products with the matrix for the eigenvalues"
    )
    parser.add_argument("--trace-probes", type=int, default=20, metavar="COUNT", help="products for the trace")
    parser.add_argument("--density-steps", type=int, default=80, metavar="COUNT", help="products for the density")
    add_json(parser)
    parser.add_argument(
        "--csv", type=str | None, default=None, metavar="FILE", help="where to write all figures, one a line"
    )
    parser.add_argument(
        "--figure", type=str | None, default=None, metavar="FILE", help="where to draw them, as PNG, PDF or SVG"
    )
    return parser


def run(arguments: Namespace) -> int:
    """Measure."""
    settings = _settings(arguments)
    silence_known_warnings()
    from lit_gelu.cli.curvature.checkpoint import measure
    from lit_gelu.cli.curvature.files import as_json, write_csv, write_figure
    from lit_gelu.cli.curvature.tables import tables
    from lit_gelu.cli.input_sample import made_sample, sample_for
    from lit_gelu.cli.loading import load_data, load_model

    data = load_data(arguments.data, arguments.data_root)
    model = load_model(arguments.ckpt, arguments.model, sample_for(arguments.input_shape, data))
    sample = made_sample(arguments.input_shape) if arguments.input_shape else None
    report = measure(model, data, settings, source=arguments.ckpt, input_sample=sample)
    if arguments.json != "-":
        console = console_for_output()
        for table in tables(report):
            console.print(table)
    if arguments.json is not None:
        write_text(as_json(report), arguments.json)
    for path, write in ((arguments.csv, write_csv), (arguments.figure, write_figure)):
        if path is not None:
            write(report, path)
    return 0


def _settings(arguments: Namespace) -> "Settings":
    """Check what can be checked before anything is loaded."""
    quantities = _quantities(arguments.quantities)
    for name, least in {"samples": 2, "lanczos_steps": 2, "trace_probes": 2, "density_steps": 1, "seed": 0}.items():
        if getattr(arguments, name) < least:
            raise CurvatureCommandError(
                f"--{name.replace('_', '-')} {getattr(arguments, name)} is not accepted. Give an integer from {least}."
            )
    if arguments.figure is not None and Path(arguments.figure).suffix.lower() not in _FORMATS:
        raise CurvatureCommandError(f"--figure {arguments.figure} is not accepted. Give a file {', '.join(_FORMATS)}.")
    if arguments.figure is not None:  # before minutes of measuring
        need("matplotlib", extra="plots", what="--figure")
    from lit_gelu.cli.curvature.checkpoint import Settings

    given = {option.name: arguments[option.name] for option in fields(Settings)}
    return Settings(**given | {"quantities": quantities})


def _quantities(words: Sequence[str]) -> tuple[str, ...]:
    """Return what is asked for, in the order of the tables."""
    for word in words:
        if word not in QUANTITIES:
            accepted = ", ".join(QUANTITIES)
            raise CurvatureCommandError(f"--quantities {word} is not accepted. Give one of {accepted}.")
    return tuple(name for name in QUANTITIES if name in words)
