"""``lit-gelu export``: write a checkpoint's model to an ONNX file, checked against PyTorch."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

from lit_gelu.cli.options import add_data, add_flag, add_input_shape, add_model, command_parser
from lit_gelu.cli.terminal import console_for_output
from lit_gelu.errors import LitGeluError
from lit_gelu.files import is_file, is_folder

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

EXAMPLES = """\
examples:
  lit-gelu export runs/digits_gelu/version_0/checkpoints/last.ckpt
  lit-gelu export last.ckpt -o model.onnx --approximate tanh --lowering contrib
  lit-gelu export last.ckpt -o model.onnx --approximate none tanh sigmoid     model-none.onnx, model-tanh.onnx, ...
  lit-gelu export last.ckpt --dtype fp16 --target ort-cuda --softmax --labels cat dog
  lit-gelu export last.ckpt --dynamic sequence                                or input_ids:1=length: of any length
  lit-gelu export last.ckpt --model my_module.MyNet --input-shape 3,32,32     your own, from the current folder
  lit-gelu export last.ckpt --import my_module --model MyNet --data MyData    its input from the first batch of its data
  lit-gelu export lit_gelu.tasks.MNISTClassifier -o untrained.onnx
  lit-gelu export last.ckpt --preprocessing MNISTData                         a file that takes raw pixels, uint8
  lit-gelu export last.ckpt --preprocessing CIFAR10Data --data-root data      whitening fitted to its training images
  lit-gelu export last.ckpt -o net.onnx --int8 --data MNISTData               net-int8.onnx too, its accuracy measured
  lit-gelu export last.ckpt --int8 --data MNISTData --calibration percentile --float-layers output
"""
ARGUMENTS = {  # options that export_onnx and quantize_onnx call otherwise
    "input_sample": "--input-shape",
    "path": "--output",
    "dynamic_shapes": "--dynamic",
    "method": "--calibration",
    "samples": "--calibration-samples",
}
CALIBRATIONS = ("minmax", "entropy", "percentile")
_INT8_DEFAULTS: dict[str, Any] = {
    "calibration": "minmax",
    "calibration_samples": 512,
    "float_layers": [],
    "max_difference": None,
}


class OutputNameError(LitGeluError, ValueError):
    """An output path that does not fit what was asked for."""


class Int8OptionError(LitGeluError, ValueError):
    """Options of a file in int8 that do not go together."""


def build_parser() -> ArgumentParser:
    """Return the command's parser."""
    parser = command_parser("export", EXAMPLES)
    parser.add_argument(
        "source", type=str, help="a Lightning checkpoint, or the dotted path of a LightningModule class"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=str | None,
        default=None,
        metavar="FILE",
        help="the file to write; default: the checkpoint's name with .onnx",
    )
    add_model(parser)
    add_input_shape(parser)
    add_data(
        parser,
        "such as MNISTData: the check runs on its test data too, its first batch is the input of a model without "
        "example_input_array, and --int8 is calibrated on it",
        root_of="--preprocessing and --data",
    )
    _add_export_options(parser)
    parser.add_argument(
        "--preprocessing",
        type=str | None,
        default=None,
        metavar="CLASS",
        help="a data module, such as MNISTData, whose preprocessing becomes a part of the file: it takes raw pixels",
    )
    add_flag(parser, "--check", "compare each file with PyTorch", default=True)
    _add_int8(parser)
    return parser


def _add_export_options(parser: ArgumentParser) -> None:
    """Add the options that `lit_gelu.export.export_onnx` has, from their record."""
    from lit_gelu.export.options import ExportOptions

    for option in ExportOptions.all():
        name, text, choices = f"--{option.name.replace('_', '-')}", option.metadata["about"], option.metadata["choices"]
        if isinstance(option.default, bool):
            add_flag(parser, name, text, default=option.default)
            continue
        many: dict[str, Any] = {}
        if option.name == "approximate":
            text, many = f"{text}; several write one file each", {"nargs": "+", "default": [option.default]}
        elif isinstance(option.default, tuple):
            many = {"nargs": "+", "default": []}
        shown = {"metavar": f"{{{','.join(choices)}}}"} if choices else {}  # the library checks, and knows near names
        kind = int | None if option.default is None else str
        names = [name, "--dynamic"] if option.name == "dynamic_shapes" else [name]
        parser.add_argument(*names, **{"type": kind, "default": option.default, "help": text, **many, **shown})


def _add_int8(parser: ArgumentParser) -> None:
    """Add the options of files in int8."""
    add_flag(parser, "--int8", "write each file in int8 too: NAME-int8.onnx")
    parser.add_argument(
        "--calibration", choices=CALIBRATIONS, default="minmax", help="int8: how the ranges of values are found"
    )
    parser.add_argument(
        "--calibration-samples", type=int, default=512, metavar="ROWS", help="int8: training data to calibrate on"
    )
    parser.add_argument(
        "--float-layers",
        type=str,
        nargs="+",
        default=[],
        metavar="NAME",
        help="int8: layers that stay in float32, such as output 'head.*'",
    )
    parser.add_argument(
        "--max-difference",
        type=float | None,
        default=None,
        help="int8: how much worse the error rate may be; default: 0.01",
    )


def run(arguments: Namespace) -> int:
    """Export; return 0, or 1 if a file does not compute what the model computes."""
    from lit_gelu.cli.input_sample import evaluation_data, input_sample, require_input, sample_for
    from lit_gelu.cli.loading import load_data, load_model, load_preprocessing
    from lit_gelu.export import check_parity, export_onnx, write_proof
    from lit_gelu.export.options import ExportOptions

    outputs = output_paths(arguments.source, arguments.output, arguments.approximate)
    _require_int8_options(arguments)
    root = None if arguments.data is not None and arguments.preprocessing is None else arguments.data_root
    preprocessing = load_preprocessing(arguments.preprocessing, root)
    data = None if arguments.data is None else load_data(arguments.data, arguments.data_root)
    shapes = arguments.input_shape if preprocessing is None else []  # of raw pixels, which the model does not take
    model = load_model(arguments.source, arguments.model, sample_for(shapes, data))
    # A data module's batches are behind its preprocessing, and then a sample is raw pixels.
    sample = input_sample(arguments.input_shape, model, data if preprocessing is None else None)
    if preprocessing is None:
        require_input(sample, model)
    rows = evaluation_data(data)
    console = console_for_output(soft_wrap=True, highlight=False, markup=False)
    options = {option.name: arguments[option.name] for option in ExportOptions.all()}
    passed = True
    for approximate, path in outputs.items():
        report = export_onnx(
            model,
            path,
            sample,
            preprocessing=preprocessing,
            **options | {"approximate": approximate},
        )
        console.print(str(report))
        if arguments.check:
            parity = check_parity(model, path, rows, sample, strict=False, preprocessing=preprocessing)
            passed &= parity.passed
            write_proof(parity, path, [])
            console.print(f"  {parity.summary()}")
        if arguments.int8:
            passed &= _write_int8(arguments, model, path, data, sample, preprocessing, console)
    return 0 if passed else 1


def output_paths(source: str, output: str | None, forms: list[str]) -> dict[str, Path]:
    """Return which file each form of GELU goes to: net.onnx, or of several net-none.onnx, net-tanh.onnx."""
    if len(set(forms)) < len(forms):
        raise OutputNameError(f"--approximate {' '.join(forms)}: a form is given twice. Give each once.")
    if is_folder(source):
        raise OutputNameError(f"{source!r} is a folder. Give a checkpoint in it, or the class of a model.")
    is_path = source.endswith(".ckpt") or is_file(source)
    default = Path(source).with_suffix(".onnx") if is_path else Path(f"{source.rpartition('.')[2]}.onnx")
    path = default if output is None else Path(output)
    if path.suffix != ".onnx":
        raise OutputNameError(f"--output {str(path)!r} must end in .onnx.")
    if len(forms) == 1:
        return {forms[0]: path}
    return {form: path.with_name(f"{path.stem}-{form}.onnx") for form in forms}


def _require_int8_options(arguments: Namespace) -> None:
    """Refuse options that do not go together, before any work is done."""
    if arguments.int8 and arguments.data is None:
        raise Int8OptionError("--int8 is calibrated on data: name a data module, such as --data MNISTData.")
    if arguments.int8 and arguments.dtype not in {"fp32", "float32"}:
        raise Int8OptionError(f"--int8 files are made of float32 ones: leave out --dtype {arguments.dtype}.")
    given = [name for name, default in _INT8_DEFAULTS.items() if arguments[name] != default]
    if given and not arguments.int8:
        raise Int8OptionError(f"--{given[0].replace('_', '-')} is of --int8. Give --int8 too, or leave it out.")


def _write_int8(
    arguments: Namespace,
    model: "nn.Module",
    path: Path,
    data: Any,
    sample: Any,
    preprocessing: "nn.Module | None",
    console: "Console",
) -> bool:
    """Write a float32 file in int8 too, and compare it with PyTorch if asked; whether it costs no more than it may."""
    from lit_gelu.export.proof import record_parity
    from lit_gelu.export.quantization import check_quantized, quantize_onnx
    from lit_gelu.export.quantization.check import MAX_DIFFERENCE

    output = path.with_name(f"{path.stem}-int8.onnx")
    result = quantize_onnx(
        path,
        output,
        data,
        method=arguments.calibration,
        samples=arguments.calibration_samples,
        float_layers=arguments.float_layers,
    )
    console.print(str(result))
    if not arguments.check:
        return True
    limit = MAX_DIFFERENCE if arguments.max_difference is None else arguments.max_difference
    report = check_quantized(
        model, output, data, sample, max_difference=limit, strict=False, preprocessing=preprocessing
    )
    record_parity(output, report.proof())
    console.print(f"  {report.summary()}")
    return report.passed
