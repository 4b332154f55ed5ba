"""Which part of a matrix a program of `net_kernels` computes, by what the kernel does and how large the matrix is."""

from typing import Any, NamedTuple

# Three products of TF32 have about the digits of one in float32, and the tensor cores make them in less time.
PRECISION = "tf32x3"
MOST_CLASSES = 128  # a program of the output layer has all of them


class Tiles(NamedTuple):
    """What a program computes: rows, columns, how many terms of the products' sums at once; its warps and stages."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int = 3

    def constants(self) -> dict[str, Any]:
        """Return what kernels are compiled with."""
        sizes = {"ROWS": self.rows, "COLUMNS": self.columns, "DEPTH": self.depth}
        return {**sizes, "PRECISION": PRECISION, "num_warps": self.warps, "num_stages": self.stages}


def tiles_of(kernel: str, rows: int, columns: int, terms: int) -> Tiles:
    """Return the tiles of a matrix.

    Args:
        kernel: ``"forward"``, ``"backward"``, ``"output"`` or ``"parameters"``.
        rows: Of the matrix: samples in a batch, or outputs of a layer whose parameters are stepped.
        columns: Its columns.
        terms: Of the sum behind each of its elements.
    """
    # Chosen by benchmarks/replica_tiles.py on an H200; for padded rows of 160 numbers those that were best for 150.
    if kernel == "parameters":
        is_aligned = columns % 16 == 0  # where numbers are read one or two at a time, registers are short
        widest = 64 if is_aligned and -columns % 64 < columns // 8 else 32
        return Tiles(power_of_two(rows, 16, 32), power_of_two(columns, 16, widest), power_of_two(terms, 16, 32), 2)
    if kernel == "output":  # all classes are in one program
        tall = power_of_two(rows, 16, 128)
        return Tiles(tall, power_of_two(columns, 16, MOST_CLASSES), 32, 8 if tall == 128 else 4)
    if kernel == "backward" and rows > 16:
        return Tiles(power_of_two(rows, 16, 64), power_of_two(columns, 16, 32), 32, 4)
    if rows > 64 and terms % 4:  # rows of inputs begin where no vector of four numbers does
        return Tiles(128, power_of_two(columns, 16, 64), 16, 8, 4)
    return Tiles(power_of_two(rows, 16, 64), power_of_two(columns, 16, 64), 32, 4)


def unit_of(features: int) -> int:
    """Return the largest of the numbers 16, 4, 2 and 1 that a row's size is a multiple of."""
    return next(unit for unit in (16, 4, 2, 1) if features % unit == 0)


def power_of_two(number: int, least: int, most: int) -> int:
    """Return the power of two that is not less than ``number``, within bounds."""
    return max(min(1 << (number - 1).bit_length(), most), least)
