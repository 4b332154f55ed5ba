"""The options of ``lit-gelu paper run``, by topic; those for Ray stand beside it."""

import jsonargparse

from gelu_paper.cli.accelerators import ACCELERATORS
from gelu_paper.protocol.cells import PRECISION
from gelu_paper.protocol.presets import PRESETS

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "bf16-true", "16-true", "64-true")


def add_choice_options(parser: jsonargparse.ArgumentParser) -> None:
    """Add the options that say which runs are made."""
    meanings = "; ".join(f"{name}: {meaning}" for name, meaning in PRESETS.items())
    parser.add_argument("--preset", choices=list(PRESETS), default="quick", help=meanings)
    parser.add_argument("--only", nargs="*", metavar="EXPERIMENT", default=[], help="only these experiments")
    parser.add_argument("--arms", nargs="*", metavar="ARM", default=[], help="only these arms, such as gelu")
    parser.add_argument("--seeds", nargs="*", type=int, metavar="SEED", default=[], help="only these seeds")
    parser.add_argument(
        "--epochs",
        type=int,
        default=None,
        help="end each run after so many, where time is short: not the paper's protocol, and tables say so",
    )
    parser.add_argument("--shard", metavar="I/N", default=None, help="only the I-th of N parts, counted from 1")


def add_file_options(parser: jsonargparse.ArgumentParser) -> None:
    """Add the options that say where the results go, and where the data are."""
    parser.add_argument("--results", metavar="FOLDER", default=None, help="default: runs/paper/PRESET")
    parser.add_argument("--data-root", metavar="FOLDER", default=None, help="default: LIT_GELU_DATA, or data")
    parser.add_argument(
        "--tweet-clusters",
        metavar="FILE",
        default=None,
        help="word clusters (50mpaths2) in place of the authors' word vectors; tables and figures say so",
    )


def add_worker_options(parser: jsonargparse.ArgumentParser) -> None:
    """Add the options that say how many runs are made at a time, together, and on which GPUs."""
    parser.add_argument(
        "--workers", type=int, default=None, help="runs at a time; default: one for each core, one for each GPU"
    )
    parser.add_argument(
        "--replicas",
        metavar="auto|off|N",
        default="auto",
        help="how many runs are made together at most; auto: as many as the task gains from, on the CPU; off: one",
    )
    parser.add_argument(
        "--devices",
        nargs="+",
        metavar="GPU",
        default=[],
        help="all, or numbers as torch counts: each run sees one of these GPUs only; default: the first for all",
    )


def add_trainer_options(parser: jsonargparse.ArgumentParser) -> None:
    """Add the options that say what each run is computed on, and how."""
    parser.add_argument("--threads", type=int, default=1, help="of each run on the CPU: small nets are fastest with 1")
    parser.add_argument(
        "--accelerator",
        choices=ACCELERATORS,
        default="auto",
        help="the Trainer's; auto: cuda if it is there, else cpu",
    )
    parser.add_argument(
        "--precision", choices=PRECISIONS, default=PRECISION, help="the Trainer's; it is part of a run's configuration"
    )
    parser.add_argument(
        "--fused-optimizer",
        action="store_true",
        help="one kernel for all of Adam's step, of all but the CIFAR nets; it is part of a run's configuration",
    )
    parser.add_argument(
        "--noise",
        choices=("global", "keys"),
        default="global",
        help="keys: dropout and the order of samples as functions of the seed, the same on every device, of all but "
        "the CIFAR nets; part of a run's configuration",
    )


def add_outcome_options(parser: jsonargparse.ArgumentParser) -> None:
    """Add the options that say what is kept, what is a failure, and whether anything is made."""
    parser.add_argument(
        "--checkpoints", action="store_true", help="keep the net of each run that is made, in RESULTS/checkpoints"
    )
    parser.add_argument("--skip-missing", action="store_true", help="missing data are no failure")
    parser.add_argument("--dry-run", action="store_true", help="say what would be run")
