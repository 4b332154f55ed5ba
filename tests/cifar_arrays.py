"""Small data sets in the forms of CIFAR's files, for tests of readers, data modules and tasks."""

import hashlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np


def random_arrays(train: int, test: int, classes: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return random images [n, 32, 32, 3] and labels [n] by the names of an arrays file."""
    generator = np.random.default_rng(seed)
    arrays = {}
    for part, samples in {"train": train, "test": test}.items():
        arrays[f"x_{part}"] = generator.integers(0, 256, (samples, 32, 32, 3), dtype=np.uint8)
        arrays[f"y_{part}"] = generator.permutation(np.arange(samples) % classes)
    return arrays


def write_arrays(path: Path, train: int, test: int, classes: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Write an arrays file and return what it holds."""
    arrays = random_arrays(train, test, classes, seed)
    np.savez(path, **arrays)
    return arrays


def write_batches(root: Path, reader: type, arrays: dict[str, np.ndarray], patch: Any) -> None:
    """Write files as those of torchvision's CIFAR10 or CIFAR100, and make their checksums the right ones."""
    folder = root / reader.base_folder
    folder.mkdir(parents=True)
    fine = reader.base_folder == "cifar-100-python"
    for part, names in {"train": reader.train_list, "test": reader.test_list}.items():
        pixels = arrays[f"x_{part}"].transpose(0, 3, 1, 2).reshape(-1, 3072)
        shares = zip(np.array_split(pixels, len(names)), np.array_split(arrays[f"y_{part}"], len(names)), strict=True)
        listed = []
        for (name, _), (data, labels) in zip(names, shares, strict=True):
            batch = {"data": data, "fine_labels" if fine else "labels": labels.tolist()}
            if fine:
                batch["coarse_labels"] = [0] * len(labels)
            listed.append([name, _write(folder / name, batch)])
        patch.setattr(reader, f"{part}_list", listed)
    checksum = _write(folder / reader.meta["filename"], {reader.meta["key"]: []})
    patch.setattr(reader, "meta", {**reader.meta, "md5": checksum})


def _write(path: Path, content: Any) -> str:
    path.write_bytes(pickle.dumps(content))
    return hashlib.md5(path.read_bytes()).hexdigest()
