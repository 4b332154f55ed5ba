"""Which tiles make a group's step on CUDA fastest: those of `lit_gelu.replicas.device.kernel_tiles` beside others.

    python -P benchmarks/replica_tiles.py                     the paper's Figure 2 (90 nets) and its tweets (45 nets)
    python -P benchmarks/replica_tiles.py --nets tweets --json FILE

A step is a part of a CUDA graph of several, timed whole, since one kernel leaves in the cache what the next one reads.
Kernel by kernel, the tiles that make it shortest are taken. Candidates are compiled first, by several processes at a
time; kernels of three products of TF32 are set beside those of one, which has fewer digits, and of float32 without
tensor cores.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # with python -P it is not there

import torch

from lit_gelu.replicas import EagerExecutor, build_members, device
from lit_gelu.replicas.device import kernel_tiles, net_kernels
from lit_gelu.replicas.device.captured_steps import CapturedSteps
from lit_gelu.replicas.device.kernel_steps import KernelStep
from lit_gelu.replicas.device.kernel_tiles import Tiles
from lit_gelu.tasks import MNISTClassifier, TweetTagger

ACTIVATIONS = ("elu", "gelu_tanh", "relu")
Nets = tuple[Callable[..., Any], int, int, int, list[dict[str, Any]]]
NETS: dict[str, Nets] = {
    "MNIST": (
        MNISTClassifier, 128, 784, 10,
        [{"keep": keep, "activation": name} for keep in (1.0, 0.5) for name in ACTIVATIONS for _ in range(15)],
    ),
    "tweets": (TweetTagger, 16, 150, 25, [{"activation": name} for name in ACTIVATIONS for _ in range(15)]),
}  # fmt: skip
STEPS, ROUNDS, SAMPLES = 100, 3, 1000
Key = tuple[str, int, int, int]

TALL = [
    Tiles(64, 64, 32, 4), Tiles(128, 64, 32, 4), Tiles(64, 128, 32, 4), Tiles(64, 32, 32, 4), Tiles(128, 32, 32, 4),
    Tiles(128, 64, 32, 8), Tiles(128, 64, 16, 8, 4), Tiles(128, 128, 32, 8), Tiles(128, 128, 16, 8, 4),
    Tiles(128, 256, 16, 8), Tiles(64, 256, 16, 8), Tiles(64, 64, 64, 4, 2),
]  # fmt: skip
FLAT = [
    Tiles(16, 64, 32, 4), Tiles(16, 32, 32, 2), Tiles(16, 32, 64, 2), Tiles(16, 64, 64, 4), Tiles(16, 128, 32, 8),
    Tiles(16, 32, 256, 4, 1), Tiles(16, 64, 256, 8, 1), Tiles(16, 32, 128, 4, 2), Tiles(16, 64, 128, 4, 2),
    Tiles(16, 16, 256, 4, 1), Tiles(16, 32, 128, 2, 2), Tiles(16, 16, 128, 2, 2),
]  # fmt: skip
WEIGHTS = [
    Tiles(32, 32, 32, 2), Tiles(32, 64, 32, 4), Tiles(64, 64, 32, 4), Tiles(64, 32, 32, 4), Tiles(64, 32, 32, 2),
    Tiles(32, 64, 32, 2), Tiles(16, 64, 32, 2), Tiles(16, 64, 32, 1), Tiles(16, 128, 32, 4), Tiles(16, 256, 32, 4),
    Tiles(32, 256, 32, 8), Tiles(32, 128, 32, 4),
]  # fmt: skip
OUTPUT = [
    Tiles(64, 0, 32, 4), Tiles(128, 0, 32, 8), Tiles(16, 0, 32, 4), Tiles(16, 0, 128, 4, 2), Tiles(16, 0, 256, 4, 1),
    Tiles(16, 0, 256, 8, 1), Tiles(16, 0, 128, 8, 2), Tiles(16, 0, 64, 4),
]  # fmt: skip


def candidates(key: Key) -> list[Tiles]:
    """Return tiles to try, none of them larger than what it is for."""
    kernel, rows, columns, terms = key
    own = kernel_tiles.tiles_of(*key)
    if kernel == "output":
        found = [tiles._replace(columns=own.columns) for tiles in OUTPUT if tiles.rows <= max(rows, 16)]
    elif kernel == "parameters":
        deepest = kernel_tiles.power_of_two(terms, 16, 64)
        found = [tiles._replace(depth=min(tiles.depth, deepest)) for tiles in WEIGHTS]
    else:
        deepest = kernel_tiles.power_of_two(terms, 16, 256)
        found = TALL if rows > 16 else [tiles._replace(depth=min(tiles.depth, deepest)) for tiles in FLAT]
    return list(dict.fromkeys([own, *(t for t in found if t.columns <= 2 * max(columns, 16))]))


class Chosen:
    """Stands for `kernel_tiles.tiles_of`, and notes what it is asked for."""

    def __init__(self) -> None:
        self.own, self.chosen = kernel_tiles.tiles_of, dict[Key, Tiles]()
        self.asked: dict[Key, None] = {}
        self.last: Key | None = None

    def __call__(self, *key: Any) -> Tiles:
        """Return the tiles that are tried."""
        self.last = key
        self.asked[key] = None
        return self.chosen.get(key) or self.own(*key)


def step_of(name: str) -> KernelStep:
    """Return a step of all nets with random samples, ready to be made."""
    build, batch, features, classes, cells = NETS[name]
    cells = [{"noise": "keys", **cell} for cell in cells]
    executor = EagerExecutor(build_members(build, cells, [place % 5 for place in range(len(cells))]), "device")
    executor.stacks.tree.to("cuda")
    executor.configure_optimizers()
    torch.manual_seed(0)
    inputs, labels = torch.rand(55_000, features).cuda(), torch.randint(classes, (55_000,)).cuda()
    rows = torch.randint(len(inputs), (STEPS, len(cells), batch))
    steps = executor.device_steps
    assert steps is not None  # noqa: S101 - of the kind "device"
    step = steps._step_for(inputs, labels, rows)
    assert isinstance(step, KernelStep)  # noqa: S101 - on CUDA
    step.start(rows)
    return step


def microseconds(run: Callable[[], Any], begin_again: Callable[[], Any] = lambda: None) -> float:
    """Return the time of one of `STEPS` that a call makes, the median of some rounds."""
    spans = []
    for _ in range(ROUNDS):
        begin_again()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        spans.append(begin.elapsed_time(end) * 1e3 / STEPS)
    return statistics.median(spans)


def of_step(step: KernelStep, way: int | None = None) -> float:
    """Return the time of a step inside a CUDA graph, by so many stretches."""
    if way is not None:
        step.divide(way)
    graphs = CapturedSteps(step, torch.cuda)
    return microseconds(lambda: graphs(STEPS), step.place.zero_)


def of_evaluation(step: KernelStep) -> float:
    """Return the time of the hidden layers of all nets for `SAMPLES` samples, inside a CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    evaluated(step)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        evaluated(step)
    return microseconds(lambda: [graph.replay() for _ in range(STEPS)])


def evaluated(step: KernelStep) -> None:
    """Compute outputs without noise."""
    assert step.fused is not None  # noqa: S101 - it is a `KernelStep`
    step.fused.noise_free_outputs(step.flat[:SAMPLES])


class OnlyChosen:
    """Stands for `net_kernels`: starts a kernel if the tiles that were asked for just before are chosen ones."""

    def __init__(self, chosen: Chosen) -> None:
        self.chosen = chosen

    def __getattr__(self, name: str) -> Any:
        """Return a kernel, or what takes a grid and arguments in its place."""
        is_chosen = self.chosen.last in self.chosen.chosen
        return getattr(net_kernels, name) if is_chosen else defaultdict(lambda: lambda *_, **__: None)


def compile_some(name: str, place: int) -> None:
    """Compile every kernel with the candidate at a place, if it has so many."""
    chosen = kernel_tiles.tiles_of = Chosen()  # type: ignore[assignment]
    step = step_of(name)
    device.net_kernels = OnlyChosen(chosen)  # type: ignore[assignment]
    step()
    evaluated(step)
    for key in list(chosen.asked):
        tried = candidates_by(chosen, key)[place : place + 1]
        chosen.chosen = dict.fromkeys([key], tried[0]) if tried else {}
        with noted(f"{name} {key} {tried}"):
            step.place.zero_()
            (evaluated if key[1] == SAMPLES else KernelStep.__call__)(step)
            torch.cuda.synchronize()


def candidates_by(chosen: Chosen, key: Key) -> list[Tiles]:
    """Return the candidates while `kernel_tiles.tiles_of` is replaced."""
    replaced, kernel_tiles.tiles_of = kernel_tiles.tiles_of, chosen.own
    try:
        return candidates(key)
    finally:
        kernel_tiles.tiles_of = replaced


def tuned(name: str) -> dict[str, Any]:
    """Choose the tiles of every kernel, one after the other."""
    chosen = kernel_tiles.tiles_of = Chosen()  # type: ignore[assignment]
    step = step_of(name)
    found: dict[str, Any] = {"step before": of_step(step), "evaluation before": of_evaluation(step)}
    print(name, found, flush=True)
    for key in list(chosen.asked):
        times: dict[Tiles, float] = {}
        for tiles in candidates_by(chosen, key):
            before, chosen.chosen = chosen.chosen, {**chosen.chosen, key: tiles}
            with noted(f"{key} {tuple(tiles)}"):
                times[tiles] = (of_evaluation if key[1] == SAMPLES else of_step)(step)
            chosen.chosen = before
        best = min(times, key=lambda tiles: times[tiles])
        chosen.chosen[key] = best
        found[" ".join(map(str, key))] = {" ".join(map(str, map(int, t))): round(us, 1) for t, us in times.items()}
        print(key, "best", tuple(best), found[" ".join(map(str, key))], flush=True)
    found["step"], found["evaluation"] = of_step(step), of_evaluation(step)
    kept = kernel_tiles.PRECISION
    for precision in ("tf32", "ieee"):
        kernel_tiles.PRECISION = precision
        with noted(precision):
            found[f"step in {precision}"] = of_step(step)
    kernel_tiles.PRECISION = kept
    usual = len(step.stretches)
    for way in (1, 2, 3, 4, 6, 9):
        with noted(f"{way} stretches"):
            found[f"step in {way} stretches"] = of_step(step, way)
    step.divide(usual)
    with one_stream(step):
        found["step on one stream"] = of_step(step)
        found["kernels"] = kernels_of(step)
    print(name, {key: round(value, 1) for key, value in found.items() if isinstance(value, float)}, flush=True)
    return found


@contextmanager
def one_stream(step: KernelStep) -> Iterator[None]:
    """Have one kernel run after the other."""
    kept = len(step.stretches)
    step.divide(1)
    step.stretches = [stretch._replace(stream=None, side=None) for stretch in step.stretches]
    yield
    step.divide(kept)


@contextmanager
def noted(what: str) -> Iterator[None]:
    """Print an error, such as too much shared memory, and go on."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        print(f"{what}: {str(error)[:120]}", flush=True)


def kernels_of(step: KernelStep) -> dict[str, str]:
    """Return what kernels take in a step without a graph: microseconds and calls, by name."""
    step.place.zero_()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    rows = sorted(profiler.key_averages(), key=lambda row: -row.self_device_time_total)
    found = {
        row.key[:60]: f"{row.self_device_time_total / STEPS:.1f} us in {row.count / STEPS:.1f} calls"
        for row in rows
        if row.self_device_time_total > 0
    }
    print("\n".join(f"    {key}: {value}" for key, value in found.items()), flush=True)
    return found


def main() -> None:
    """Compile, choose, print, and write the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", choices=list(NETS), default=list(NETS))
    parser.add_argument("--processes", type=int, default=14, help="that compile at a time")
    parser.add_argument("--json", type=Path, help="file for the times")
    parser.add_argument("--compile", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compile is not None:
        return compile_some(options.nets[0], options.compile)
    if not torch.cuda.is_available():
        parser.error("torch sees no CUDA device (lit-gelu doctor says why)")
    most = max(len(TALL), len(FLAT), len(WEIGHTS), len(OUTPUT)) + 1
    commands = [
        [sys.executable, "-P", __file__, "--nets", name, "--compile", str(place)]
        for place in range(most)
        for name in options.nets
    ]
    with ThreadPoolExecutor(options.processes) as pool:
        list(pool.map(lambda command: subprocess.run(command, check=False), commands))  # noqa: S603 - our own
    print("compiled", flush=True)
    found = {"device": torch.cuda.get_device_name(), **{name: tuned(name) for name in options.nets}}
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return None


if __name__ == "__main__":
    main()
