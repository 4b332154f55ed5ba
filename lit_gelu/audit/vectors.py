"""Golden vectors: inputs of a dtype with the correctly rounded f, f' and f'' of an activation, as files.

A value is rounded to nearest, ties to even, subnormal numbers kept. The proof is an interval that holds the exact value
(`lit_gelu.audit.enclosures`) and both of whose ends round to the same number; where they do not, it is computed anew
with more digits.
"""

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.audit.enclosures import Jet, definition_of, iv
from lit_gelu.display import Displayed
from lit_gelu.errors import ArgumentError, AuditError, DataError, message_of, shown
from lit_gelu.files import write_atomically


class BinaryFormat(NamedTuple):
    """A dtype by its bit patterns; that of a positive number is its place among them."""

    dtype: torch.dtype
    integers: torch.dtype  # of the patterns, with the sign
    sign: int  # the pattern of minus 0
    infinity: int  # the pattern of infinity
    digits: int  # binary digits of a normal number, the hidden one among them
    lowest: int  # the smallest positive number, as a power of two

    def numbers(self, patterns: np.ndarray) -> Tensor:
        """Return the numbers of bit patterns."""
        return torch.from_numpy(patterns.astype(np.int64)).to(self.integers).view(self.dtype)

    def round(self, value: tuple[int, int, int, int]) -> int:
        """Return the pattern of the number nearest to one of mpmath's, of two the even one."""
        negative, mantissa, exponent, length = value
        last = max(exponent + length - self.digits, self.lowest)  # the place of the last digit that is kept
        shift = last - exponent
        if shift > length:  # below half of the smallest number
            return self.sign if negative else 0
        kept = mantissa >> shift if shift > 0 else mantissa << -shift
        if shift > 0:
            rest, half = mantissa - (kept << shift), 1 << (shift - 1)
            kept += rest > half or (rest == half and kept & 1)
        # A carry out of the mantissa goes into the exponent, as it should.
        magnitude = min(((last - self.lowest) << (self.digits - 1)) + kept, self.infinity) if kept else 0
        return magnitude | (self.sign if negative else 0)


FORMATS = {
    "float32": BinaryFormat(torch.float32, torch.int32, 2**31, 0x7F800000, 24, -149),
    "float16": BinaryFormat(torch.float16, torch.int16, 2**15, 0x7C00, 11, -24),
    "bfloat16": BinaryFormat(torch.bfloat16, torch.int16, 2**15, 0x7F80, 8, -133),
}
_ALIASES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_COUNT = 200_000  # inputs in float32
_NEIGHBOURS = 8  # on either side of a point of interest
_PRECISIONS = (64, 192, 576, 1728, 5184)  # binary digits: what the first ones leave open, the next ones decide
# In the place of infinity: what converges has done so there, and what grows has left the dtype, even if the smallest
# number of float64 scales it.
_FAR = 2.0**1000, 2.0**300


@dataclass(frozen=True, repr=False)
class Vectors(Displayed):
    """Inputs and correctly rounded values, as bit patterns of the dtype, ``uint16`` or ``uint32``.

    Args:
        spec: The activation.
        dtype: ``"float32"``, ``"float16"`` or ``"bfloat16"``.
        x: The inputs: rising patterns.
        f: The values there.
        f1: The first derivatives.
        f2: The second derivatives.
    """

    spec: str
    dtype: str
    x: np.ndarray
    f: np.ndarray
    f1: np.ndarray
    f2: np.ndarray

    @property
    def name(self) -> str:
        """The name of the files, without suffix."""
        return f"{re.sub('[^A-Za-z0-9.-]+', '_', self.spec).strip('_')}_{self.dtype}"

    def numbers(self, name: str) -> Tensor:
        """Return one of the arrays as numbers of the dtype."""
        return FORMATS[self.dtype].numbers(getattr(self, name))

    def _summary(self) -> str:
        return f"{self.spec}, {self.dtype}, {len(self.x):,} inputs"


def correctly_rounded(definition: Callable[[Jet], Jet], pattern: int, form: BinaryFormat) -> tuple[int, int, int]:
    """Return the patterns of f, f' and f'' at that of an input; at infinity they are the limits."""
    negative, magnitude = pattern & form.sign, pattern & ~form.sign
    if magnitude > form.infinity:
        nan = form.infinity | (1 << (form.digits - 2))
        return nan, nan, nan
    number = form.numbers(np.array([pattern])).item()
    for precision in _PRECISIONS:
        iv.prec = precision
        x = iv.mpf(number) if magnitude < form.infinity else iv.mpf(_FAR[0]) * _FAR[1] * (-1 if negative else 1)
        jet = definition(Jet(x, iv.mpf(1)))
        ends = [[form.round(end) for end in interval._mpi_] for interval in (jet.f, jet.f1, jet.f2 + jet.f2)]
        if all(low == high for low, high in ends):
            f, f1, f2 = (low for low, _ in ends)
            # -0 has the value -0 where f rises through 0; other exact zeros are positive.
            return form.sign if pattern == form.sign and f == 0 < f1 < form.sign else f, f1, f2
    raise AuditError(
        f"A value at {number} is so near to the middle of two numbers of {form.dtype} that {precision} digits do not "
        "tell to which it rounds. Change the activation's arguments."
    )


def write_vectors(
    spec: Any, dtype: str, folder: str | os.PathLike[str], *, registry: ActivationRegistry | None = None
) -> Vectors:
    """Write an activation's correctly rounded f, f' and f'' into a ``.npz`` and a JSON file of the same content.

    The inputs are all 65,536 bit patterns of a 16-bit dtype, or 200,000 of float32, the same on every machine: equally
    many of every binade and sign, and with neighbours 0, the smallest and largest numbers, kinks, minimum, inflections
    and where f, f' and f'' reach their limits. ``docs/vectors.md`` describes the files.

    Args:
        spec: The activation; ``lit-gelu vectors`` lists those that have a definition in intervals.
        dtype: ``"float32"``, ``"float16"`` or ``"bfloat16"``; or fp32, fp16, bf16.
        folder: Where the two files go, named by the spec and the dtype.
        registry: What names mean; by default `lit_gelu.activations.registry`.

    Returns:
        What was written.

    Raises:
        ArgumentError: If the dtype is another one, or the activation has no definition in intervals.
        AuditError: If a value is so near to the middle of two numbers that its rounding cannot be told.

    Example:
        >>> import tempfile
        >>> vectors = write_vectors("hard_swish", "bf16", tempfile.mkdtemp())
        >>> vectors
        Vectors(hard_swish, bfloat16, 65,536 inputs)
        >>> [vectors.numbers(name)[0x3F80].item() for name in ("x", "f", "f1", "f2")]
        [1.0, 0.66796875, 0.83203125, 0.333984375]
    """
    name = _ALIASES.get(dtype, dtype)
    if name not in FORMATS:
        raise ArgumentError(f"dtype={shown(dtype)} is not accepted. Give one of {', '.join((*FORMATS, *_ALIASES))}.")
    registry, form = registry_or_default(registry), FORMATS[name]
    resolved = registry.resolve(spec)
    definition = definition_of(resolved)
    if form.sign == 2**15:
        x = np.arange(2**16)
    else:
        info = registry.info(resolved)
        points = [*(place for place, _ in info.kinks), *(info.minimum or ())[:1], *(info.inflections or ())]
        patterns = torch.tensor(points, dtype=form.dtype).view(form.integers).tolist()
        x = _stratified(form, [*patterns, *_saturation(definition, form)])
    unsigned = np.uint32 if form.sign > 2**15 else np.uint16
    values = np.array([correctly_rounded(definition, pattern, form) for pattern in x.tolist()], unsigned)
    vectors = Vectors(str(resolved), name, x.astype(unsigned), *values.T.copy())
    texts = {"spec": vectors.spec, "dtype": name}
    arrays = {key: getattr(vectors, key) for key in ("x", "f", "f1", "f2")}
    with write_atomically(Path(folder, f"{vectors.name}.npz")) as temporary:
        np.savez_compressed(temporary, spec=np.array(vectors.spec), dtype=np.array(name), **arrays)
    with write_atomically(Path(folder, f"{vectors.name}.json")) as temporary:
        lists = {key: array.tolist() for key, array in arrays.items()}
        head = {"format": "lit-gelu-vectors", "version": 1}
        temporary.write_text(json.dumps(head | texts | lists, separators=(",", ":")) + "\n")
    return vectors


def _saturation(definition: Callable[[Jet], Jet], form: BinaryFormat) -> list[int]:
    """Return the inputs from which on f, f' and f'' are at their limits, and f at ``x``, on either side."""
    ends = []
    for sign in (0, form.sign):
        for order, limit in enumerate(correctly_rounded(definition, sign | form.infinity, form)):
            below, above = 0, form.infinity
            while above - below > 1:
                middle = (below + above) // 2
                value = correctly_rounded(definition, sign | middle, form)[order]
                reached = value == limit or (order == 0 and value == sign | middle)
                below, above = (below, middle) if reached else (middle, above)
            ends.append(above)
    return ends


def _stratified(form: BinaryFormat, interest: Sequence[int]) -> np.ndarray:
    """Return patterns of float32: special ones, points of interest and neighbours, and equally many of every binade."""
    binade = 1 << (form.digits - 1)
    centres = np.array([0, binade, form.infinity, *interest], np.int64) & ~form.sign
    near = np.add.outer(centres, np.arange(-_NEIGHBOURS, _NEIGHBOURS + 1)).clip(0, form.infinity)
    chosen = np.unique(
        np.append(np.stack([near, near | form.sign]), form.infinity + binade // 2)
    )  # the last one is NaN
    # Multiples of the golden ratio fill a binade evenly. That of exponent 0 is the subnormal numbers'.
    index = np.arange(_COUNT + len(chosen), dtype=np.int64)
    step, stratum = np.divmod(index, 2 * form.infinity // binade)
    mantissa = (0x9E3779B1 * (step + 1) + 0x85EBCA6B * stratum) % binade
    sampled = (stratum % 2) * form.sign + (stratum // 2) * binade + mantissa
    sampled = sampled[~np.isin(sampled, chosen)][: _COUNT - len(chosen)]
    return np.sort(np.append(chosen, sampled))


def read_vectors(path: str | os.PathLike[str]) -> Vectors:
    """Read a ``.npz`` file of `write_vectors`.

    Args:
        path: The file.

    Returns:
        What it holds.

    Raises:
        DataError: If there is no such file, or it holds something else.
    """
    try:
        with np.load(path, allow_pickle=False) as data:
            vectors = Vectors(str(data["spec"]), str(data["dtype"]), *(data[name] for name in ("x", "f", "f1", "f2")))
        sizes = {len(vectors.numbers(name)) for name in ("x", "f", "f1", "f2")}
    except Exception as error:
        raise DataError(
            f"{shown(str(path))} cannot be read as golden vectors: {message_of(error)}. Give a .npz file of lit-gelu "
            "vectors write."
        ) from error
    if len(sizes) != 1 or 0 in sizes:
        raise DataError(f"{shown(str(path))} holds arrays of lengths {sorted(sizes)}. Write the vectors anew.")
    return vectors
