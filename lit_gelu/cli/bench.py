"""``lit-gelu bench``: time an ONNX file beside PyTorch eager and torch.compile, in one run."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.table import Table

from lit_gelu.cli.terminal import console_for_output, write_json
from lit_gelu.errors import ArgumentError

if TYPE_CHECKING:
    from lit_gelu.export.runtime.bench import BenchReport

_ANOTHER_MODEL = 0.05  # more than 16 bit can explain


def bench(
    file: str,
    *,
    ckpt: str | None = None,
    model: str | None = None,
    input_shape: Sequence[str] = (),
    batch_sizes: Sequence[int] = (1, 128),
    providers: Sequence[str] = (),
    threads: int | None = None,
    seconds: float = 5.0,
    compile: bool = True,  # noqa: A002 - the option's name
    json: str | None = None,
) -> int:
    """Time an ONNX file beside PyTorch eager and torch.compile, in one run.

    in a shell:
      lit-gelu bench model.onnx                                   onnxruntime alone
      lit-gelu bench model.onnx --ckpt last.ckpt                  beside the model that it came from
      lit-gelu bench model.onnx --ckpt last.ckpt --batch-sizes 1 32 256 --threads 4
      lit-gelu bench tokens.onnx --input-shape input_ids=16:int64                 a file that takes whole numbers
      lit-gelu bench model.onnx --ckpt last.ckpt --no-compile --json bench.json

    Args:
        file: an ONNX file
        ckpt: the Lightning checkpoint that it came from
        model: the model's class, if the checkpoint does not record it: my_module.MyNet, also from the current folder
        input_shape: for a model without example_input_array: the sizes of one row of each input, without the batch;
            1,28,28, or by name input_ids=16:int64 mask=16:int64
        batch_sizes: rows of a call
        providers: onnxruntime's execution providers; default: CUDA, or the CPU
        threads: of PyTorch and onnxruntime; default: all cores
        seconds: how long to measure each batch size
        compile: measure torch.compile too
        json: print JSON, and nothing else on standard output; or write it into a file
    """
    if min(batch_sizes) < 1 or seconds < 0 or (threads is not None and threads < 1):
        raise ArgumentError("--batch-sizes and --threads are whole numbers from 1 on, --seconds is not negative.")
    if ckpt is None and model:
        raise ArgumentError("--model is the class of the PyTorch model: give --ckpt too.")
    from lit_gelu.cli.input_sample import named_inputs, random_sample, sample_for
    from lit_gelu.cli.loading import load_checkpoint
    from lit_gelu.export import OnnxPredictor
    from lit_gelu.export.runtime import bench as measurement

    runtimes = list(providers) or None
    predictor = OnnxPredictor(file, runtimes)
    if ckpt is not None and predictor.metadata.get("lit_gelu.preprocessing"):
        raise ArgumentError(f"{file!r} takes raw pixels, which the model of {ckpt!r} does not. Leave out --ckpt.")
    sample = random_sample(input_shape) if input_shape else None
    net = None if ckpt is None else load_checkpoint(ckpt, model, sample_for(input_shape, None))
    inputs = named_inputs(sample, list(predictor.ports))
    console = console_for_output()
    report = measurement.bench(
        file,
        net,
        batch_sizes=batch_sizes,
        inputs=inputs,
        providers=runtimes,
        threads=threads or measurement.cores(),
        seconds=seconds,
        compiled=compile,
    )
    if json != "-":
        console.print(_table(report))
        # Files in int8 cut off the normal random numbers that are run here, and so differ on them.
        worst = max(row.error for row in report.rows)
        if worst > _ANOTHER_MODEL and predictor.metadata.get("lit_gelu.dtype") != "int8":
            console.print(f"outputs differ by {worst:.1e}: the file is not of this model's weights, or wrong")
    if json is not None:
        write_json(asdict(report), json, as_text=False)
    return 0


def _table(report: "BenchReport") -> Table:
    alone = "; onnxruntime alone, --ckpt times PyTorch beside it" if report.baseline.startswith("onnxruntime") else ""
    title = f"{report.path} on {report.device}, {report.provider}, {report.threads} threads{alone}"
    table = Table(title=title, title_justify="left")
    columns = ("median ms", "p90 ms", "rows/s", f"time / {report.baseline}", "error")
    for column in ("batch", "variant", *columns):
        table.add_column(column, justify="left" if column == "variant" else "right")
    for row in report.rows:
        figures = (f"{1000 * row.median:.4g}", f"{1000 * row.p90:.4g}", f"{row.throughput:.4g}", f"{row.ratio:.3f}")
        table.add_row(str(row.batch_size), row.variant, *figures, f"{row.error:.1e}")
    return table
