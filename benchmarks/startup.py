"""Processor time until the command line answers, compared with ``import torch``, in one run.

``python benchmarks/startup.py [--runs N]`` starts, in turns and each in an interpreter of its own, an empty Python,
``import torch``, ``import lit_gelu``, ``lit-gelu --version`` and ``--help``, which need no torch, and ``lit-gelu
activations``, which does. It prints the median of user and system time of each, and its ratio to ``import torch``.
"""

import argparse
import resource
import statistics
import subprocess
import sys

MAIN = "import sys; from lit_gelu.cli.main import main; sys.exit(main({arguments}))"
PROGRAMS = {
    "python -c pass": "pass",
    'python -c "import torch"': "import torch",
    "import lit_gelu": "import lit_gelu",
    "lit-gelu --version": MAIN.format(arguments=["--version"]),
    "lit-gelu --help": MAIN.format(arguments=["--help"]),
    "lit-gelu activations": MAIN.format(arguments=["activations"]),
}


def processor_time(program: str) -> float:
    """Run a program in an interpreter of its own and return the seconds of processor time that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-P", "-c", program], check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - own text
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure in turns, and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="of each program (default: 3)")
    runs = parser.parse_args().runs
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(runs):
        for name, program in PROGRAMS.items():
            times[name].append(processor_time(program))
    torch = statistics.median(times['python -c "import torch"'])
    for name, seconds in times.items():
        median = statistics.median(seconds)
        sys.stdout.write(f"{name:<28} {median:6.2f} s   {median / torch:5.2f} x import torch\n")


if __name__ == "__main__":
    main()
