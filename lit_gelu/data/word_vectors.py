"""Word vectors in text form, and vectors made of the bit paths of word clusters, a substitute for them."""

import functools
import hashlib
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import torch
from torch import Tensor

from lit_gelu.data.errors import CorruptDataError, DataNotFoundError
from lit_gelu.errors import shown
from lit_gelu.files import is_file

UNKNOWN = "UUUNKKK"
PADDING = "</s>"
CLUSTER_VECTOR_SIZE = 50
_LONGEST_PATH = 16
_CLUSTER_LINE = re.compile(rf"([01]{{1,{_LONGEST_PATH}}})\t([^\t]*)\t[^\t]*")  # bit path, word and count
_SEPARATOR = re.compile("[ \t]+")  # not str.split(): words may hold other kinds of space


def read_word_vectors(path: Path, words: Collection[str]) -> dict[str, Tensor]:
    """Read the vectors of some words, `UNKNOWN` and `PADDING` from a text file, one ``word v1 v2 ...`` a line."""
    # A first line of two integers, number of words and size of a vector, is skipped: word2vec writes one, GloVe does
    # not. Where a word occurs twice, its first vector counts.
    vectors: dict[str, Tensor] = {}
    wanted = {*words, UNKNOWN, PADDING}
    size = None
    for number, line in numbered_lines(path):
        word, *values = _SEPARATOR.split(line.rstrip(" \t"))
        if number == 1 and word.isdecimal() and len(values) == 1 and values[0].isdecimal():
            continue
        size = size or len(values)
        if not values or len(values) != size:
            raise CorruptDataError(
                f"{str(path)!r}, line {number}: {len(values)} values after {shown(word)}, expected "
                f"{size or 'at least 1'}. Give a text file with a word and its vector on each line."
            )
        if word in wanted and word not in vectors:
            vectors[word] = _vector(values, path, number)
    missing = [word for word in (UNKNOWN, PADDING) if word not in vectors]
    if missing:
        raise CorruptDataError(
            f"{str(path)!r} has no vector for {' and '.join(map(repr, missing))}; {UNKNOWN!r} stands for words without "
            f"a vector, {PADDING!r} for the places before and after a tweet. Add a line for each to the file."
        )
    return vectors


def read_cluster_vectors(path: Path, words: Collection[str]) -> dict[str, Tensor]:
    """Make vectors, ``[50]``, of the clusters of some words: not the paper's vectors, see `cluster_vector`."""
    # Each line has ``bit path<TAB>word<TAB>count``, as the 1000 clusters of 56 million tweets (``50mpaths2``) of
    # Owoputi et al. 2013, "Improved part-of-speech tagging for online conversational text with word clusters".
    vectors = {word: signs(word) for word in (UNKNOWN, PADDING)}
    of_path: dict[str, Tensor] = {}
    wanted = {*words}
    for number, line in numbered_lines(path):
        read = _CLUSTER_LINE.fullmatch(line)
        if read is None:
            raise CorruptDataError(
                f"{str(path)!r}, line {number}: {shown(line)} given, expected a path of 1 to {_LONGEST_PATH} bits, a "
                "word and its count with tabs between them. Give the file 50mpaths2 as it is published."
            )
        bits, word = read.groups()
        if word in wanted and word not in vectors:
            if bits not in of_path:
                of_path[bits] = cluster_vector(bits)
            vectors[word] = of_path[bits]
    return vectors


def cluster_vector(path: str) -> Tensor:
    """Turn a cluster's path of bits into a fixed vector, ``[50]``, the same on every machine: nothing is learned."""
    # The sum of the `signs` of all n beginnings of the path over sqrt(n). Two words have, but for the small random part
    # of 50 signs, the inner product 50 times the number of bits that their paths begin with in common, over the
    # geometric mean of the lengths: words that were merged early in the clustering are close.
    total: Tensor = torch.stack([signs(path[:length]) for length in range(1, len(path) + 1)]).sum(dim=0)
    return total.div(len(path) ** 0.5)


def signs(text: str) -> Tensor:
    """Return 50 signs that a text decides: 1 where the bit of its SHA-256 digest is set, from the lowest on."""
    return torch.tensor(_signs(text))


@functools.lru_cache(maxsize=4096)  # paths of 1000 clusters begin alike: a tenth of what is asked for is different
def _signs(text: str) -> tuple[float, ...]:
    digest = int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")
    return tuple(1.0 if digest >> bit & 1 else -1.0 for bit in range(CLUSTER_VECTOR_SIZE))


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    r"""Go through a text file's lines, which end with ``\n`` or ``\r\n`` only, numbered from 1."""
    if not is_file(path):
        raise DataNotFoundError(f"There is no file {str(path)!r}. Give the path of one.")
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                yield number, line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise CorruptDataError(f"{str(path)!r} is no UTF-8 text ({error}). Save it as UTF-8.") from error


def _vector(values: list[str], path: Path, number: int) -> Tensor:
    """Return the values as a tensor."""
    try:
        vector = torch.tensor([float(value) for value in values])
    except ValueError:
        raise CorruptDataError(
            f"{str(path)!r}, line {number}: {shown(values)} given, expected numbers. Give numbers after the word, with "
            "spaces between them."
        ) from None
    if not vector.isfinite().all():
        raise CorruptDataError(
            f"{str(path)!r}, line {number}: a value is not finite in float32. Give finite numbers after the word."
        )
    return vector
