"""``lit-gelu bench``: time an ONNX file beside PyTorch eager and torch.compile, in one run."""

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace
from rich.table import Table

from lit_gelu.cli.options import (
    add_data,
    add_flag,
    add_input_shape,
    add_json,
    add_model,
    add_providers,
    command_parser,
)
from lit_gelu.cli.terminal import console_for_output, write_text
from lit_gelu.errors import ArgumentError
from lit_gelu.files import without_nonfinite

if TYPE_CHECKING:
    from torch import nn

    from lit_gelu.export.runtime.bench import BenchReport

EXAMPLES = """\
examples:
  lit-gelu bench model.onnx                                   onnxruntime alone
  lit-gelu bench model.onnx --ckpt last.ckpt                  beside the model that it came from
  lit-gelu bench model.onnx --ckpt last.ckpt --batch-sizes 1 32 256 --threads 4
  lit-gelu bench model.onnx --ckpt last.ckpt --tune           measure onnxruntime's options first, keep the best
  lit-gelu bench tokens.onnx --input-shape input_ids=16:int64                 a file that takes whole numbers
  lit-gelu bench raw.onnx --ckpt last.ckpt --preprocessing MNISTData          a file that takes raw pixels
  lit-gelu bench model.onnx --ckpt last.ckpt --no-compile --json bench.json
"""
ARGUMENTS = {"path": "FILE", "inputs": "--input-shape"}
_ANOTHER_MODEL = 0.05  # more than 16 bit can explain


def build_parser() -> ArgumentParser:
    """Return the command's parser."""
    parser = command_parser("bench", EXAMPLES)
    parser.add_argument("file", type=str, help="an ONNX file")
    parser.add_argument(
        "--ckpt",
        type=str | None,
        default=None,
        help="the Lightning checkpoint that it came from, or a class; of random weights only times are compared",
    )
    add_model(parser)
    add_input_shape(parser)
    add_data(parser, "to measure on its first batch, not on made-up numbers", root_of="--preprocessing and --data")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 128], metavar="ROWS", help="rows of a call")
    add_providers(parser)
    parser.add_argument(
        "--threads", type=int | None, default=None, help="of PyTorch and onnxruntime; default: all cores"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to measure each batch size")
    add_flag(parser, "--compile", "measure torch.compile too", default=True)
    add_flag(parser, "--tune", "measure onnxruntime's options first, and keep the best")
    parser.add_argument(
        "--preprocessing",
        type=str | None,
        default=None,
        metavar="CLASS",
        help="a data module, for a file that takes raw pixels",
    )
    add_json(parser)
    return parser


def run(arguments: Namespace) -> int:
    """Measure; return 0."""
    if min(arguments.batch_sizes) < 1 or arguments.seconds < 0 or (arguments.threads or 1) < 1:
        raise ArgumentError("--batch-sizes and --threads are whole numbers from 1 on, --seconds is not negative.")
    from lit_gelu.cli.input_sample import named_inputs
    from lit_gelu.export import OnnxPredictor
    from lit_gelu.export.quantization import is_quantized
    from lit_gelu.export.runtime.bench import bench, resized
    from lit_gelu.export.runtime.tuning_file import cores

    predictor = OnnxPredictor(arguments.file, arguments.providers, tuning=not arguments.tune)
    model, sample, is_random = _model_and_sample(arguments, raw=bool(predictor.metadata.get("lit_gelu.preprocessing")))
    inputs = named_inputs(sample, list(predictor.ports))
    console = console_for_output(markup=False)
    quiet = arguments.json == "-"
    if arguments.tune:
        rows = max(arguments.batch_sizes)
        values = () if inputs is None else resized(inputs, predictor.ports, rows).values()
        tuning = predictor.tune(*values, batch_size=rows, reference=None if is_random else model)
        if not quiet:
            console.print(str(tuning))
    report = bench(
        arguments.file,
        model,
        batch_sizes=arguments.batch_sizes,
        inputs=inputs,
        providers=arguments.providers,
        threads=arguments.threads or cores(),
        seconds=arguments.seconds,
        compiled=arguments.compile,
    )
    if is_random:  # then the file's outputs say nothing
        rows_ = (row if row.variant.startswith("torch") else replace(row, error=math.nan) for row in report.rows)
        report = replace(report, rows=tuple(rows_))
    if not quiet:
        console.print(_table(report))
        # Files in int8 cut off the normal random numbers that are run here, and so differ on them.
        worst = max(row.error for row in report.rows if not math.isnan(row.error))
        if worst > _ANOTHER_MODEL and not is_quantized(arguments.file):
            console.print(f"outputs differ by {worst:.1e}: the file is not of this model's weights, or wrong")
        if is_random:
            console.print(f"{arguments.ckpt} is a class of random weights: its outputs are not compared.")
    if arguments.json is not None:
        plain = without_nonfinite(json.loads(report.to_json()), as_text=False)
        write_text(json.dumps(plain, indent=2), arguments.json)
    return 0


def _model_and_sample(arguments: Namespace, *, raw: bool) -> "tuple[nn.Module | None, Any, bool]":
    """Return the model behind the file's preprocessing, what to measure on, and whether its weights are random."""
    from torch import nn

    from lit_gelu.cli.input_sample import inputs_of_data, made_sample, sample_for
    from lit_gelu.cli.loading import draws_weights, load_data, load_model, load_preprocessing

    made = made_sample(arguments.input_shape) if arguments.input_shape else None
    if arguments.ckpt is None:
        unused = [name for name in ("preprocessing", "model", "data") if arguments[name] is not None]
        if unused:
            raise ArgumentError(f"--{unused[0]} is of the PyTorch model: give --ckpt too.")
        return None, made, False
    if raw and (arguments.preprocessing is None or arguments.data is not None):
        raise ArgumentError(
            f"{arguments.file!r} takes raw pixels. Name the data module whose preprocessing is a part of it, and no "
            "--data: --preprocessing MNISTData, for example."
        )
    data = None if arguments.data is None else load_data(arguments.data, arguments.data_root)
    root = None if data is not None and arguments.preprocessing is None else arguments.data_root
    preprocessing = load_preprocessing(arguments.preprocessing, root)
    model = load_model(arguments.ckpt, arguments.model, sample_for([] if raw else arguments.input_shape, data))
    is_random = draws_weights(arguments.ckpt, model)
    sample = inputs_of_data(data, model) if data is not None and made is None else made
    return (model if preprocessing is None or not raw else nn.Sequential(preprocessing, model)), sample, is_random


def _table(report: "BenchReport") -> Table:
    """Return the measurements, times in milliseconds."""
    tuned = f"; onnxruntime is tuned to {report.tuning}" if report.tuning else ""
    title = f"{report.path} on {report.device}, {report.provider}, {report.threads} threads{tuned}"
    table = Table(title=title, title_justify="left")
    columns = ("p50 ms", "p90 ms", "p99 ms", "in a row ms", "rows/s", f"time / {report.baseline}", "error")
    for column in ("batch", "variant", *columns):
        table.add_column(column, justify="left" if column == "variant" else "right")
    for row in report.rows:
        seconds = (row.latency.p50, row.latency.p90, row.latency.p99, row.in_a_row)
        error = "-" if math.isnan(row.error) else f"{row.error:.1e}"
        times = (f"{1000 * value:.4g}" for value in seconds)
        table.add_row(str(row.batch_size), row.variant, *times, f"{row.throughput:.4g}", f"{row.ratio:.3f}", error)
    return table
