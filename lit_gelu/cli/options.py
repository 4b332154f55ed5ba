"""Options that several commands take, so that they are called and explained the same everywhere."""

from jsonargparse import ArgumentParser

from lit_gelu.cli import own_modules


def add_import(parser: ArgumentParser) -> None:
    """Add ``--import``.

    Args:
        parser: The command's.
    """
    parser.add_argument(
        own_modules.OPTION, action="append", default=[], metavar="MODULE", help=f"{own_modules.HELP}; may be repeated"
    )


def add_model(parser: ArgumentParser) -> None:
    """Add ``--model`` and ``--import``.

    Args:
        parser: The command's.
    """
    parser.add_argument(
        "--model",
        type=str | None,
        default=None,
        help="the model's class, if the checkpoint does not record it: my_module.MyNet, also from the current folder",
    )
    add_import(parser)


def add_input_shape(parser: ArgumentParser) -> None:
    """Add ``--input_shape``.

    Args:
        parser: The command's.
    """
    parser.add_argument(
        "--input_shape",
        "--input-shape",
        type=str,
        nargs="+",
        default=[],
        metavar="[NAME=]SIZES[:DTYPE]",
        help="for a model without example_input_array: the sizes of one row of each input, without the batch; "
        "1,28,28, or by name input_ids=16:int64 mask=16:int64",
    )


def add_providers(parser: ArgumentParser) -> None:
    """Add ``--providers``.

    Args:
        parser: The command's.
    """
    parser.add_argument(
        "--providers",
        type=str,
        nargs="+",
        default=None,
        help="onnxruntime's execution providers; default: CUDA, or the CPU",
    )
