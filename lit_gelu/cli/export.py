"""``lit-gelu export``: write a checkpoint's model to an ONNX file."""

from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console

from lit_gelu.cli.export_int8 import add_int8_arguments, require_int8_arguments, write_int8
from lit_gelu.cli.options import add_input_shape, add_model
from lit_gelu.cli.terminal import command_parser
from lit_gelu.errors import LitGeluError
from lit_gelu.files import is_file

HELP = "write a checkpoint's model to an ONNX file"
EXAMPLES = """\
examples:
  lit-gelu export runs/digits_gelu/version_0/checkpoints/last.ckpt
  lit-gelu export last.ckpt -o model.onnx --approximate tanh --lowering contrib
  lit-gelu export last.ckpt -o model.onnx --approximate none tanh sigmoid     model-none.onnx, model-tanh.onnx, ...
  lit-gelu export last.ckpt --dtype fp16 --target ort-cuda --softmax true --labels cat dog
  lit-gelu export last.ckpt --model my_module.MyNet --input_shape 3,32,32     your own, from the current folder
  lit-gelu export last.ckpt --import my_module --model MyNet --data MyData    its input from the first batch of its data
  lit-gelu export lit_gelu.tasks.MNISTClassifier -o untrained.onnx
  lit-gelu export last.ckpt --preprocessing MNISTData                         a file that takes raw pixels, uint8
  lit-gelu export last.ckpt --preprocessing CIFAR10Data --data_root data      whitening fitted to its training images
  lit-gelu export last.ckpt -o net.onnx --int8 true --data MNISTData          net-int8.onnx too, its accuracy measured
  lit-gelu export last.ckpt --int8 true --data MNISTData --calibration percentile --float_layers output
"""


class OutputNameError(LitGeluError, ValueError):
    """An output path that does not fit what was asked for."""


def build_parser() -> ArgumentParser:
    """Return the command's parser.

    Returns:
        The parser.
    """
    parser = command_parser("export", f"{HELP}, checked against PyTorch", EXAMPLES)
    parser.add_argument(
        "source", type=str, help="a Lightning checkpoint, or the dotted path of a LightningModule class"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=str | None,
        default=None,
        help="the file to write; default: the checkpoint's name with .onnx",
    )
    add_model(parser)
    add_input_shape(parser)
    parser.add_argument(
        "--data",
        type=str | None,
        default=None,
        help="a data module: the check runs on its test data too, its first batch is the input of a model without "
        "example_input_array, and --int8 is calibrated on it",
    )
    _add_export_options(parser)
    parser.add_argument(
        "--preprocessing",
        type=str | None,
        default=None,
        help="a data module, such as MNISTData, whose preprocessing becomes a part of the file: it takes raw pixels",
    )
    parser.add_argument(
        "--data_root", type=str | None, default=None, help="the folder of --preprocessing's data and of --data's"
    )
    parser.add_argument("--check", type=bool, default=True, help="whether to compare each file with PyTorch")
    add_int8_arguments(parser)
    return parser


def _add_export_options(parser: ArgumentParser) -> None:
    """Add the options that `lit_gelu.export.export_onnx` has, from their record."""
    from lit_gelu.export.options import ExportOptions

    for option in ExportOptions.all():
        about, choices = option.metadata["about"], ", ".join(option.metadata["choices"])
        text = f"{about}: {choices}" if choices else about
        many: dict[str, Any] = {}
        if option.name == "approximate":
            text, many = f"{text}; several write one file each", {"nargs": "+", "default": [option.default]}
        elif isinstance(option.default, tuple):
            many = {"nargs": "+", "default": []}
        kind = int | None if option.default is None else bool if isinstance(option.default, bool) else str
        parser.add_argument(f"--{option.name}", **{"type": kind, "default": option.default, "help": text, **many})


def run(arguments: Namespace) -> int:
    """Export.

    Args:
        arguments: What `build_parser` parsed.

    Returns:
        0, or 1 if a file does not compute what the model computes.
    """
    from lit_gelu.cli.input_sample import evaluation_data, input_sample, require_input
    from lit_gelu.cli.loading import load_data, load_model, load_preprocessing
    from lit_gelu.export import check_parity, export_onnx, write_proof

    outputs = output_paths(arguments.source, arguments.output, arguments.approximate)
    require_int8_arguments(arguments)
    model = load_model(arguments.source, arguments.model)
    root = None if arguments.data is not None and arguments.preprocessing is None else arguments.data_root
    preprocessing = load_preprocessing(arguments.preprocessing, root)
    data = None if arguments.data is None else load_data(arguments.data, arguments.data_root)
    # A data module's batches are behind its preprocessing, and then a sample is raw pixels.
    sample = input_sample(arguments.input_shape, model, data if preprocessing is None else None)
    if preprocessing is None:
        require_input(sample, model)
    rows = evaluation_data(data)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    passed = True
    for approximate, path in outputs.items():
        report = export_onnx(
            model,
            path,
            sample,
            **{**_export_options(arguments), "approximate": approximate},
            preprocessing=preprocessing,
        )
        console.print(str(report))
        if arguments.check:
            parity = check_parity(model, path, rows, sample, strict=False, preprocessing=preprocessing)
            passed &= parity.passed
            write_proof(parity, path, [])
            console.print(f"  {parity.summary()}")
        if arguments.int8:
            passed &= write_int8(arguments, model, path, data, preprocessing, console)
    return 0 if passed else 1


def _export_options(arguments: Namespace) -> dict[str, Any]:
    """Return what was given of the options of `lit_gelu.export.export_onnx`."""
    from lit_gelu.export.options import ExportOptions

    return {option.name: arguments[option.name] for option in ExportOptions.all()}


def output_paths(source: str, output: str | None, forms: list[str]) -> dict[str, Path]:
    """Say which file each form of GELU goes to.

    Args:
        source: The checkpoint or class.
        output: The path that was asked for, if any.
        forms: The forms; several get a suffix each.

    Returns:
        Path by form.

    Raises:
        OutputNameError: If the path does not end in ``.onnx``, or a form is given twice.

    Example:
        >>> {form: path.as_posix() for form, path in output_paths("last.ckpt", "net.onnx", ["none", "tanh"]).items()}
        {'none': 'net-none.onnx', 'tanh': 'net-tanh.onnx'}
    """
    if len(set(forms)) < len(forms):
        raise OutputNameError(f"--approximate {' '.join(forms)}: a form is given twice. Give each once.")
    is_path = source.endswith(".ckpt") or is_file(source)
    default = Path(source).with_suffix(".onnx") if is_path else Path(f"{source.rpartition('.')[2]}.onnx")
    path = default if output is None else Path(output)
    if path.suffix != ".onnx":
        raise OutputNameError(f"--output {str(path)!r} must end in .onnx.")
    if len(forms) == 1:
        return {forms[0]: path}
    return {form: path.with_name(f"{path.stem}-{form}.onnx") for form in forms}
