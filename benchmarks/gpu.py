"""All that a machine with a GPU has to show, in stages that each end within their budget and leave a record.

    python -P benchmarks/gpu.py                                           every stage, records in runs/gpu
    python -P benchmarks/gpu.py --stage parity export --resume --json DIR these two, going on where records stopped
    python -P benchmarks/gpu.py --device cpu --quick                      every stage small, without a GPU

``doctor``: what `lit-gelu doctor` finds. ``tests``: `pytest -m gpu`. ``parity``: exported tasks, activations, a
Transformer encoder and a ViT in three dtypes: opened, compared, and who runs which node. ``export``: exported nets
beside torch eager, channels_last and torch.compile. ``activations``: each one's share of copy speed. ``cifar10`` and
``wrn``: training, with and without ActivationCurvatureMonitor.

A stage runs in a process of its own. A record is JSON (`_gpu_record.py` lists its keys), written after every figure; a
stage that fails writes one with the error, and the next begins. Exit code: 0 if nothing failed, 1 if something did, 2
for a mistake in the arguments. docs/gpu.md says how it runs on a machine where nothing can be installed.
"""

import argparse
import importlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # with python -P it is not there

from _gpu_record import Record, Settings, described, read
from _gpu_supervision import soft_end, supervised

STAGES = {
    "doctor": "_gpu_doctor",
    "tests": "_gpu_tests",
    "parity": "_gpu_parity",
    "export": "_gpu_export",
    "activations": "_gpu_activations",
    "cifar10": "_gpu_training",
    "wrn": "_gpu_training",
}
WITHOUT_DEVICE = {"doctor", "tests"}  # they say themselves what is missing
LONGEST = {"cuda": 240.0, "cpu": 3600.0}  # on a CPU only a loaded machine takes so long
BUDGET = 220.0
SHORTEST = 1.0


def parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--stage", nargs="+", choices=list(STAGES), default=list(STAGES), help="which; by default all")
    cli.add_argument(
        "--seconds", type=float, default=BUDGET, help=f"for each stage, at most {LONGEST['cuda']:g} on a GPU"
    )
    cli.add_argument(
        "--json", type=Path, default=Path("runs/gpu"), help="FILE.json for one stage, or a folder for gpu-STAGE.json"
    )
    cli.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    cli.add_argument("--quick", action="store_true", help="small sizes and few rounds: shows that stages run")
    cli.add_argument("--resume", action="store_true", help="keep what the records hold, and go on from there")
    cli.add_argument("--keep", type=Path, default=Path("runs/gpu/kept"), help="folder for checkpoints")
    cli.add_argument("--commit", default="", help="what was checked out, where git does not know it")
    cli.add_argument("--until", type=float, default=0.0, help=argparse.SUPPRESS)  # of the process of a stage
    return cli


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; end with code 2 where it makes no sense."""
    cli = parser()
    options = cli.parse_args(arguments)
    longest = LONGEST[options.device]
    if not SHORTEST <= options.seconds <= longest:
        cli.error(f"--seconds {options.seconds:g} was given; accepted: {SHORTEST:g} to {longest:g}")
    if options.device == "cpu" and not options.quick:
        cli.error("--device cpu takes hours at full size: add --quick")
    if options.json.suffix == ".json" and len(options.stage) > 1:
        cli.error(f"--json {options.json} is one file, for {len(options.stage)} stages: give a folder, or one --stage")
    options.stage = list(dict.fromkeys(options.stage))
    return options


def record_path(options: argparse.Namespace, stage: str) -> Path:
    """Return the file of a stage's record."""
    path: Path = options.json
    return path if path.suffix == ".json" else path / f"gpu-{stage}.json"


def command(options: argparse.Namespace, stage: str, until: float) -> list[str]:
    """Return what runs one stage in a process of its own."""
    flags = [f"--{name}" for name in ("quick", "resume") if getattr(options, name)]
    named = {
        "stage": stage,
        "seconds": options.seconds,
        "json": record_path(options, stage),
        "device": options.device,
        "keep": options.keep,
        "until": until,
    }
    values = [str(part) for name, value in named.items() for part in (f"--{name}", value)]
    return [sys.executable, "-P", str(Path(__file__).resolve()), *values, f"--commit={options.commit}", *flags]


def require_device() -> None:
    """Raise an error where torch sees no GPU: nothing else would come of the stage."""
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no CUDA device: the stage doctor says why; --device cpu --quick needs none")


def run_stage(options: argparse.Namespace) -> int:
    """Run one stage in this process, and write its record whatever happens."""
    from _gpu_machine import facts  # torch is loaded in the process of a stage alone

    (stage,) = options.stage
    settings = Settings(
        stage,
        options.device,
        options.quick,
        options.seconds,
        options.until,
        options.keep.resolve(),
        options.resume,
        options.commit,
    )
    record = Record(record_path(options, stage), settings, facts(options.device, options.commit))
    try:
        if options.device == "cuda" and stage not in WITHOUT_DEVICE:
            require_device()
        importlib.import_module(STAGES[stage]).run(record, settings)
    except BaseException as error:  # noqa: BLE001 - the record says it, interruptions included
        record.end(described(error))
        return 1
    record.end()
    return 1 if record.content["failed"] else 0


def summary(content: dict[str, Any]) -> str:
    """Return one line about a record."""
    if content["error"]:
        return f"ERROR: {content['error'].splitlines()[0]}"
    counts = {name: len(content[name]) for name in ("figures", "failed", "left_out")}
    text = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
    return text if content["complete"] else f"{text}; not complete: --resume goes on"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stages; return the exit code."""
    options = parse(arguments)
    if options.until:
        return run_stage(options)
    os.environ.setdefault("OMP_NUM_THREADS", "4" if options.device == "cuda" else "1")
    failed = False
    for stage in options.stage:
        path = record_path(options, stage)
        print(f"== {stage}", flush=True)
        start = time.time()
        blank: dict[str, Any] = {"stage": stage, "device": options.device, "quick": options.quick, "error": None}
        blank |= {"figures": {}, "failed": [], "left_out": [], "complete": False}
        if options.resume and path.is_file():
            blank = read(path)
        content = supervised(command(options, stage, soft_end(start, options.seconds)), path, options.seconds, blank)
        failed = failed or bool(content["error"] or content["failed"])
        print(f"   {summary(content)}; {time.time() - start:.0f} s; {path}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
