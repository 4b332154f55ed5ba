"""Through how many files and functions of this package a value passes on its way.

    python benchmarks/walks.py            a table
    python benchmarks/walks.py --files    and the files of each walk, in the order in which they are entered

Counted are calls of functions that are defined in the package's files; what runs while something is imported is not.
Of the monitored steps the objects on the way are counted too: the classes of lit_gelu.callbacks and lit_gelu.curvature
of which a method (a function whose first argument is called self; properties too) is entered between the forward hook
that sees an activation's input and `log_figures`, which hands the statistics to the loggers. Left out are those in
`BESIDE`, which the value does not pass through. Functions, and records without methods of their own, are no objects.
The walks: a name to a module; a name to the nodes of an ONNX file; a batch to logged statistics of activations.
"""

import argparse
import os
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import lit_gelu
from lit_gelu import activations, callbacks, export, tasks
from lit_gelu.export import export_onnx

ROOTS = {
    Path(lit_gelu.__file__).parent: "lit_gelu",
    Path(callbacks.__file__).parent: "callbacks",
    Path(export.__file__).parent: "export",
}


BESIDE = {
    "MeasurementSchedule": "says when to measure",
    "DeadUnitWindow": "remembers channels, for one statistic more",
    "GaussianPrediction": "says what a normal input would give, from mean and deviation alone",
}


class Walk:
    """The calls of one walk; between two functions, if these are named, the objects on the way as well."""

    def __init__(self, first: str = "", last: str = "") -> None:
        self.calls = 0
        self.changes = 0
        self.objects: dict[str, int] = {}
        self._first, self._last_on_the_way, self._on_the_way = first, last, False
        self.files: dict[str, int] = {}
        self._last = ""
        self._known: dict[str, str | None] = {}

    def note(self, frame: types.FrameType, event: str, _: object) -> None:
        """Take a call down, as ``sys.setprofile`` reports it."""
        name = frame.f_code.co_filename
        if name not in self._known:
            self._known[name] = _in_package(Path(name))
        file = self._known[name]
        if event != "call" or file is None or frame.f_code.co_name == "<module>":
            return
        self._note_object(frame)
        self.calls += 1
        self.changes += file != self._last
        self.files[file] = self.files.get(file, 0) + 1
        self._last = file

    def _note_object(self, frame: types.FrameType) -> None:
        """Take down whose method a call is, if it is on the way."""
        code = frame.f_code
        self._on_the_way = self._on_the_way or code.co_name == self._first
        kind = type(frame.f_locals.get("self"))
        room = kind.__module__.startswith(("lit_gelu.callbacks", "lit_gelu.curvature"))
        if self._on_the_way and code.co_varnames[:1] == ("self",) and room and kind.__name__ not in BESIDE:
            self.objects[kind.__name__] = self.objects.get(kind.__name__, 0) + 1
        self._on_the_way = self._on_the_way and code.co_name != self._last_on_the_way


def _in_package(path: Path) -> str | None:
    """Return a file's path in the package; ``None`` for one of somebody else."""
    for root, name in ROOTS.items():
        if path.is_relative_to(root):
            return f"{name}/{path.relative_to(root)}"
    return None


@contextmanager
def counted(first: str = "", last: str = "") -> Iterator[Walk]:
    """Count the calls of the body, and the objects between two functions."""
    walk = Walk(first, last)
    sys.setprofile(walk.note)
    try:
        yield walk
    finally:
        sys.setprofile(None)


def create() -> Walk:
    """Return the walk of ``create("gelu_tanh")``, after the plugins are loaded, in a text that was not read before."""
    activations.create("relu")
    with counted() as walk:
        activations.create("gelu_tanh")
    return walk


def export_tanh() -> Walk:
    """Return the walk of ``export_onnx(approximate="tanh")`` of the MNIST net."""
    model = tasks.MNISTClassifier("gelu")
    with tempfile.TemporaryDirectory() as folder, counted() as walk:
        export_onnx(model, Path(folder) / "net.onnx", approximate="tanh")
    return walk


def monitor() -> Walk:
    """Return the walk of one step of the MNIST net with `ActivationCurvatureMonitor`, which logs it."""
    from lightning.pytorch import Trainer
    from lightning.pytorch.loggers import CSVLogger

    images, labels = torch.rand(8, 1, 28, 28), torch.randint(10, (8,))
    batches = [(images, labels)] * 2
    watch = callbacks.ActivationCurvatureMonitor(every_n_steps=1)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            max_steps=2, logger=CSVLogger(folder), callbacks=[watch], accelerator="cpu", enable_progress_bar=False,
            enable_checkpointing=False, enable_model_summary=False, log_every_n_steps=1, limit_val_batches=0,
        )  # fmt: skip
        with counted("_see", "log_figures") as walk:
            trainer.fit(tasks.MNISTClassifier("gelu"), *[torch.utils.data.DataLoader(batches, batch_size=None)] * 2)
    return walk


WALKS: dict[str, Callable[[], Walk]] = {
    'create("gelu_tanh")': create,
    'export_onnx(MNISTClassifier, approximate="tanh")': export_tanh,
    "two steps of MNISTClassifier with ActivationCurvatureMonitor": monitor,
}


def main() -> None:
    """Print the walks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="list the files")
    options = parser.parse_args()
    print(f"{'walk':62} files   calls  changes of file")
    for name, walk_of in WALKS.items():
        walk = walk_of()
        print(f"{name:62} {len(walk.files):5} {walk.calls:7} {walk.changes:8}")
        if walk.objects:
            print(f"    {len(walk.objects)} objects on the way: {' > '.join(walk.objects)}")
        for file, calls in walk.files.items() if options.files else ():
            print(f"    {calls:6} {file}")


if __name__ == "__main__":
    main()
