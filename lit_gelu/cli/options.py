"""Parsers that are built by hand: of commands that are not yet functions."""

import jsonargparse

from lit_gelu.cli.commands import IMPORT, IMPORT_HELP, SUMMARIES, CommandParser, ExamplesHelpFormatter


def command_parser(name: str, examples: str, description: str = "") -> jsonargparse.ArgumentParser:
    """Return the parser of a command, without arguments so far."""
    return CommandParser(
        prog=f"lit-gelu {name}",
        description=description or SUMMARIES[name],
        epilog=examples,
        formatter_class=ExamplesHelpFormatter,
    )


def add_flag(parser: jsonargparse.ArgumentParser, option: str, help: str, *, default: bool = False) -> None:  # noqa: A002
    """Add an option without a value; one that is on by default is turned off by ``--no-OPTION``."""
    if default:
        parser.add_argument(option, action=jsonargparse.ActionYesNo(no_prefix="no-"), default=True, help=help)
    else:
        parser.add_argument(option, action="store_true", help=help)


def add_json(parser: jsonargparse.ArgumentParser) -> None:
    """Add ``--json [FILE]``."""
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        default=None,
        metavar="FILE",
        help="print JSON, and nothing else on standard output; or write it into a file",
    )


def add_import(parser: jsonargparse.ArgumentParser) -> None:
    """Add ``--import``."""
    parser.add_argument(IMPORT, action="append", default=[], metavar="MODULE", help=f"{IMPORT_HELP}; may be repeated")


def add_model(parser: jsonargparse.ArgumentParser) -> None:
    """Add ``--model`` and ``--import``."""
    parser.add_argument(
        "--model",
        type=str | None,
        default=None,
        metavar="CLASS",
        help="the model's class, if the checkpoint does not record it: my_module.MyNet, also from the current folder",
    )
    add_import(parser)


def add_data(
    parser: jsonargparse.ArgumentParser, use: str, *, root_of: str = "the data module", required: bool = False
) -> None:
    """Add ``--data``, a data module, and ``--data-root``, its folder."""
    kind = str if required else str | None
    parser.add_argument(
        "--data", type=kind, required=required, default=None, metavar="CLASS", help=f"a data module, {use}"
    )
    parser.add_argument(
        "--data-root", type=str | None, default=None, metavar="FOLDER", help=f"the folder with the files of {root_of}"
    )


def add_input_shape(parser: jsonargparse.ArgumentParser) -> None:
    """Add ``--input-shape``."""
    parser.add_argument(
        "--input-shape",
        type=str,
        nargs="+",
        default=[],
        metavar="[NAME=]SIZES[:DTYPE]",
        help="for a model without example_input_array: the sizes of one row of each input, without the batch; "
        "1,28,28, or by name input_ids=16:int64 mask=16:int64",
    )


def add_providers(parser: jsonargparse.ArgumentParser) -> None:
    """Add ``--providers``."""
    parser.add_argument(
        "--providers",
        type=str,
        nargs="+",
        default=None,
        help="onnxruntime's execution providers; default: CUDA, or the CPU",
    )
