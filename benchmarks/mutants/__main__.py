"""Do the tests notice faults? Puts small ones into central files, one at a time, and runs the tests of their rooms.

    python benchmarks/mutants                                   every fault of every file below: hours
    python benchmarks/mutants --sample 40 --seed 0              40 of each file
    python benchmarks/mutants --only files idx --output out.json

Prints how many were noticed, and those that were not; exits with 1 if, in some file, the tests notice less than
``--least`` of the faults that change what the file does. Those that change nothing are in equivalent.json, with the
reason. No kept library does this here: mutmut goes by the path of a file where this package maps folders to other
names, and cosmic-ray starts an interpreter for each fault, which loads torch anew.
"""

import argparse
import importlib
import json
import os
import random
import resource
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from changes import Mutant, mutants_of, normalised
from trial import run_tests

ROOT = Path(__file__).parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.json")
INSTALLED_AS = {"callbacks": "lit_gelu.callbacks", "export": "lit_gelu.export"}
#: What trials share, because loading it takes longer than most trials.
LIBRARIES = (
    "numpy",
    "scipy.linalg",
    "scipy.special",
    "scipy.stats",
    "mpmath",
    "torch",
    "torch.utils.data",
    "hypothesis",
)
TRAINING = ("lightning.pytorch", "torchmetrics", "torchvision", "sklearn.datasets")
EXPORTING = (*TRAINING, "onnx", "onnxscript", "onnx_ir", "onnxruntime", "torch.onnx", "torch.export")
SECONDS = 60  # of the processor, the least that a trial has before it is said to hang


@dataclass(frozen=True)
class Target:
    """A file and the tests that are to notice its faults.

    Args:
        file: In the repository.
        tests: Files and folders below ``tests/``.
        libraries: What to load before.
    """

    file: str
    tests: tuple[str, ...]
    libraries: tuple[str, ...] = LIBRARIES

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return Path(self.file).stem

    @property
    def module(self) -> str:
        """What it is imported as."""
        first, *rest = Path(self.file).with_suffix("").parts
        return ".".join([INSTALLED_AS.get(first, first), *rest])


TARGETS = (
    Target(
        "lit_gelu/activations/naming/spec.py", ("activations/naming/test_spec.py", "activations/naming/test_stored.py")
    ),
    Target("lit_gelu/activations/families/gelu.py", ("activations/families/test_gelu.py",)),
    Target("lit_gelu/activations/numerics/piecewise.py", ("activations/gaussian", "activations/numerics")),
    Target("lit_gelu/curvature/activation/statistics.py", ("curvature/activation/test_statistics.py",)),
    Target("lit_gelu/curvature/loss/lanczos.py", ("curvature/loss/test_lanczos.py",)),
    Target("lit_gelu/files.py", ("test_files.py",)),
    Target("lit_gelu/data/idx.py", ("data/test_idx.py", "data/test_mnist.py"), LIBRARIES + TRAINING),
    Target(
        "callbacks/swap/schedule.py",
        ("callbacks/swap/test_schedule.py", "callbacks/swap/test_triggers.py"),
        LIBRARIES + TRAINING,
    ),
    Target(
        "export/parity/differences.py",
        ("export/parity/test_differences.py", "export/parity/test_by_index.py"),
        LIBRARIES + EXPORTING,
    ),
    Target(
        "export/parity/criterion.py",
        ("export/parity/test_criterion.py", "export/parity/test_judging.py"),
        LIBRARIES + EXPORTING,
    ),
    Target("export/quantization/acceptance.py", ("export/quantization/test_acceptance.py",), LIBRARIES + EXPORTING),
)


@dataclass(frozen=True)
class Outcome:
    """What became of one fault."""

    file: str
    where: str
    before: str
    after: str
    noticed: str  # "failed", "hangs", "passed", or "equivalent: " and the reason


def equivalents() -> dict[tuple[str, str, str, str], str]:
    """Return the reasons of faults that change nothing that a test could see."""
    listed = json.loads(EQUIVALENT.read_text())
    return {(entry["file"], entry["where"], entry["before"], entry["after"]): entry["reason"] for entry in listed}


def try_file(target: Target, sample: int | None, seed: int) -> list[Outcome]:
    """Try the faults of one file; say each that is not noticed."""
    for library in target.libraries:
        importlib.import_module(library)
    path = ROOT / target.file
    source, tests = path.read_text(), [f"tests/{name}" for name in target.tests]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.NamedTemporaryFile("r") as output:
        if run_tests(target.module, str(path), normalised(source), tests, 3600, output.name) != "passed":
            raise SystemExit(f"The tests of {target.file} fail without a fault:\n{output.read()}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    limit = SECONDS + 10 * round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    mutants = mutants_of(source)
    if sample is not None and sample < len(mutants):
        chosen = random.Random(f"{target.file} {seed}").sample(range(len(mutants)), sample)  # noqa: S311 - no secret
        mutants = [mutants[i] for i in sorted(chosen)]
    reasons = equivalents()
    return [_try_one(target, mutant, str(path), tests, limit, reasons) for mutant in mutants]


def _try_one(
    target: Target,
    mutant: Mutant,
    path: str,
    tests: Sequence[str],
    limit: int,
    reasons: dict[tuple[str, str, str, str], str],
) -> Outcome:
    """Try one fault, unless it is known to change nothing."""
    key = (target.file, mutant.where, mutant.before, mutant.after)
    if key in reasons:
        return Outcome(*key, f"equivalent: {reasons[key]}")
    outcome = Outcome(*key, run_tests(target.module, path, mutant.source, tests, limit))
    if outcome.noticed == "passed":
        print(f"not noticed: {target.file}, {mutant.where}: {mutant.before}  ->  {mutant.after}", flush=True)
    return outcome


def summary(outcomes: Sequence[Outcome]) -> list[tuple[str, int, int, int, float]]:
    """Return, for each file, how many faults were tried, noticed, equivalent, and the share that was noticed."""
    rows = []
    for file in dict.fromkeys(outcome.file for outcome in outcomes):
        found = [outcome.noticed for outcome in outcomes if outcome.file == file]
        same = sum(noticed.startswith("equivalent") for noticed in found)
        noticed = sum(noticed in {"failed", "hangs"} for noticed in found)
        rows.append((file, len(found), noticed, same, noticed / max(len(found) - same, 1)))
    return rows


def main() -> int:
    """Try the files that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [target.name for target in TARGETS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--sample", type=int, help="how many faults of each file (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--least", type=float, default=0.9, help="the share that must be noticed (default: 0.9)")
    parser.add_argument("--output", type=Path, help="a JSON file for all outcomes")
    options = parser.parse_args()
    os.chdir(ROOT)
    outcomes: list[Outcome] = []
    for target in TARGETS:
        if target.name in options.only:
            outcomes += try_file(target, options.sample, options.seed)
            if options.output:
                options.output.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    rows = summary(outcomes)
    print(f"\n{'file':48} tried noticed equivalent  share")
    for file, tried, noticed, same, share in rows:
        print(f"{file:48} {tried:5} {noticed:7} {same:10} {share:6.1%}")
    return int(any(share < options.least for *_, share in rows))


if __name__ == "__main__":
    sys.exit(main())
