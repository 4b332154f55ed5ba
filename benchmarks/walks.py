"""Through how many files and functions of this package a value passes on its way.

    python benchmarks/walks.py            a table
    python benchmarks/walks.py --files    and the files of each walk, in the order in which they are entered

Counted are calls of functions that are defined in the package's files; what runs while something is imported is not.
The walks: a name to a module; a name to the nodes of an ONNX file; a file to its proof; a batch to logged statistics.
"""

import argparse
import os
import sys
import tempfile
import types
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import nn

import lit_gelu
from lit_gelu import activations, callbacks, export, tasks
from lit_gelu.export import check_parity, export_onnx

ROOTS = {Path(module.__file__ or "").parent: name for module, name in
         ((lit_gelu, "lit_gelu"), (callbacks, "callbacks"), (export, "export"))}  # fmt: skip


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the calls of the body by file."""
    walk: Counter[str] = Counter()

    def note(frame: types.FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and frame.f_code.co_name != "<module>":
            for root, name in ROOTS.items():
                if path.is_relative_to(root):
                    walk[f"{name}/{path.relative_to(root)}"] += 1

    sys.setprofile(note)
    try:
        yield walk
    finally:
        sys.setprofile(None)


def create(_: Path) -> Counter[str]:
    """``create("gelu_tanh")``, after the plugins are loaded, in a text that was not read before."""
    activations.create("relu")
    with counted() as walk:
        activations.create("gelu_tanh")
    return walk


def export_own(folder: Path) -> Counter[str]:
    """``export_onnx(approximate="tanh")`` of a user's net, none of whose files are in this package."""
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    with counted() as walk:
        export_onnx(model, folder / "net.onnx", torch.randn(2, 8), approximate="tanh")
    return walk


def export_tanh(folder: Path) -> Counter[str]:
    """``export_onnx(approximate="tanh")`` of the MNIST net, whose own two files are entered too."""
    model = tasks.MNISTClassifier("gelu")
    with counted() as walk:
        export_onnx(model, folder / "net.onnx", approximate="tanh")
    return walk


def prove(folder: Path) -> Counter[str]:
    """`check_parity` of the MNIST net's file."""
    model = tasks.MNISTClassifier("gelu")
    export_onnx(model, folder / "net.onnx")
    with counted() as walk:
        check_parity(model, folder / "net.onnx")
    return walk


def monitor(folder: Path) -> Counter[str]:
    """Two steps of the MNIST net with `ActivationCurvatureMonitor`, which logs them."""
    batches = [(torch.rand(8, 1, 28, 28), torch.randint(10, (8,)))] * 2
    watch = callbacks.ActivationCurvatureMonitor(every_n_steps=1)
    trainer = Trainer(
        max_steps=2, logger=CSVLogger(str(folder)), callbacks=[watch], accelerator="cpu", enable_progress_bar=False,
        enable_checkpointing=False, enable_model_summary=False, log_every_n_steps=1, limit_val_batches=0,
    )  # fmt: skip
    with counted() as walk:
        trainer.fit(tasks.MNISTClassifier("gelu"), *[torch.utils.data.DataLoader(batches, batch_size=None)] * 2)
    return walk


WALKS: dict[str, Callable[[Path], Counter[str]]] = {
    'create("gelu_tanh")': create,
    'export_onnx(nn.Sequential, approximate="tanh")': export_own,
    'export_onnx(MNISTClassifier, approximate="tanh")': export_tanh,
    "check_parity(MNISTClassifier)": prove,
    "two steps of MNISTClassifier with ActivationCurvatureMonitor": monitor,
}


def main() -> None:
    """Print the walks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="list the files")
    options = parser.parse_args()
    print(f"{'walk':62} files   calls")
    for name, walk_of in WALKS.items():
        with tempfile.TemporaryDirectory() as folder:
            walk = walk_of(Path(folder))
        print(f"{name:62} {len(walk):5} {walk.total():7}")
        for file, calls in walk.items() if options.files else ():
            print(f"    {calls:6} {file}")


if __name__ == "__main__":
    main()
