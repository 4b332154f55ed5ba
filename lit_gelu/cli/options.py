"""Options that several commands take, so that they are called and explained the same everywhere."""

from jsonargparse import ArgumentParser


def add_model(parser: ArgumentParser) -> None:
    """Add ``--model``.

    Args:
        parser: The command's.
    """
    parser.add_argument(
        "--model", type=str | None, default=None, help="the model's class, if the checkpoint does not record it"
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
