"""`TweetData`: the tokens of 1,827 tweets with their parts of speech, in windows of three word vectors."""

import functools
import hashlib
import os
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lit_gelu.data.in_memory import InMemoryDataModule, InMemorySamples, data_root, recorded_path
from lit_gelu.errors import ArgumentError, DataError, shown
from lit_gelu.files import is_file

TAGS = tuple("NOS^ZLMVAR!DP&TXY#@~UE$,G")
VECTORS = "embeddings-twitter.txt"
_MOST_WITHOUT = 0.1  # share of tokens without a vector that is not worth a warning
_FILES = ("train.txt", "dev.txt", "test.txt")
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
    vocabulary = {*words, UNKNOWN, PADDING}
    size = None
    for number, line in numbered_lines(path):
        word, *values = _SEPARATOR.split(line.rstrip(" \t"))
        if number == 1 and word.isdecimal() and len(values) == 1 and values[0].isdecimal():
            continue
        size = size or len(values) or None
        try:
            is_vector = len(values) == size
            if is_vector and word in vocabulary and word not in vectors:
                vectors[word] = torch.tensor(list(map(float, values)))
                is_vector = bool(vectors[word].isfinite().all())
        except ValueError:
            is_vector = False
        if not is_vector:
            raise DataError(
                f"{str(path)!r}, line {number}: {shown(line)} given, expected a word and {size or 'its'} finite "
                "numbers with spaces between them. Mend the line."
            )
    if missing := [word for word in (UNKNOWN, PADDING) if word not in vectors]:
        raise DataError(
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
    vocabulary = {*words}
    for number, line in numbered_lines(path):
        if (read := _CLUSTER_LINE.fullmatch(line)) is None:
            raise DataError(
                f"{str(path)!r}, line {number}: {shown(line)} given, expected a path of 1 to {_LONGEST_PATH} bits, a "
                "word and its count with tabs between them. Give the file 50mpaths2 as it is published."
            )
        bits, word = read.groups()
        if word in vocabulary and word not in vectors:
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


@functools.lru_cache(maxsize=4096)  # paths of 1000 clusters begin alike: a tenth of what is asked for is different
def signs(text: str) -> Tensor:
    """Return 50 signs that a text decides: 1 where the bit of its SHA-256 digest is set, from the lowest on."""
    digest = int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")
    return torch.tensor([1.0 if digest >> bit & 1 else -1.0 for bit in range(CLUSTER_VECTOR_SIZE)])


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    r"""Go through a text file's lines, which end with ``\n`` or ``\r\n`` only, numbered from 1."""
    if not is_file(path):
        raise DataError(f"There is no file {str(path)!r}. Give the path of one.")
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                yield number, line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{str(path)!r} is no UTF-8 text ({error}). Save it as UTF-8.") from error


class Tweet(NamedTuple):
    """The tokens of a tweet and the numbers of their tags."""

    tokens: tuple[str, ...]
    tags: tuple[int, ...]


class TweetData(InMemoryDataModule):
    """Part-of-speech tags of tweets: 14,619 training, 4,823 validation and 7,152 test tokens.

    A sample is a token: ``(inputs, tags)`` with the vectors of the token before, the token itself and the one after,
    ``[batch, 150]`` for vectors of 50 numbers, ``torch.float32``; tags ``[batch]``, ``torch.int64``, positions
    in `TAGS`. On both sides of a tweet stands the vector of ``</s>``; a token without one has that of ``UUUNKKK``. With
    batches of 16 an epoch has 913 steps. (Hendrycks and Gimpel 2016, arXiv 1606.08415, section 3.3 and their code; tags
    and tweets: Gimpel et al. 2011, Oct27 v0.3 in the splits of Owoputi et al. 2013, 1000, 327 and 500 tweets.)

    ``train.txt``, ``dev.txt`` and ``test.txt`` (the authors' ``devtest``) have a ``token<TAB>tag`` on each line and a
    blank line after each tweet; tokens are looked up as they are. The paper's vectors, ``embeddings-twitter.txt``, have
    to be supplied by the user; any text file of word2vec's or GloVe's form with ``UUUNKKK`` and ``</s>`` in it does.
    ``clusters`` makes fixed vectors of word clusters' bit paths instead: **not the paper's**, results with them are not
    comparable with its table, and the logged hyper-parameters say so.

    Args:
        root: Folder that holds ``tweets``. ``None`` means the environment variable ``LIT_GELU_DATA``, or ``data``.
        batch_size: Tokens in a batch.
        vectors: File of word vectors, an absolute path or one from the folder ``tweets`` on. ``None`` means
            ``embeddings-twitter.txt`` unless ``clusters`` is given.
        clusters: File of cluster bit paths (``50mpaths2``), in place of ``vectors``; a path of the same kind.

    Raises:
        ArgumentError: If both ``vectors`` and ``clusters`` are given, or ``batch_size`` is no positive integer.

    Example:
        >>> data = TweetData(root="data", clusters="50mpaths2")
        >>> data.folder.as_posix(), data.remarks()["substitute"]
        ('data/tweets', "bit paths of 50mpaths2, not the paper's vectors")
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        batch_size: int = 16,
        vectors: str | os.PathLike[str] | None = None,
        clusters: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(batch_size)
        if vectors is not None and clusters is not None:
            raise ArgumentError(
                f"vectors={str(vectors)!r} and clusters={str(clusters)!r} given; accepted: one of them. Leave out "
                "clusters= to use word vectors."
            )
        self.folder = data_root(root) / "tweets"
        self.uses_clusters = clusters is not None
        self.vector_file = self.folder / (clusters or vectors or VECTORS)
        # Under the name of its argument, so that `load_from_checkpoint` gives back what there was.
        name = "clusters" if self.uses_clusters else "vectors"
        self.save_hyperparameters({name: recorded_path(clusters or vectors or VECTORS)})
        # Words' rows, and their vectors in one tensor, which takes one file descriptor on its way to a process.
        self._table: tuple[dict[str, int], Tensor] | None = None

    def remarks(self) -> dict[str, str]:
        """Say what stands in for the paper's vectors, if anything does."""
        substitute = f"bit paths of {self.vector_file.name}, not the paper's vectors"
        return {"substitute": substitute} if self.uses_clusters else {}

    def prepare_data(self) -> None:
        """Make sure that the files are there."""
        if missing := [name for name in _FILES if not is_file(self.folder / name)]:
            raise DataError(
                f"The tweets are not in {str(self.folder)!r} (missing: {', '.join(missing)}). Give root=, or set the "
                "environment variable LIT_GELU_DATA, to the folder that holds tweets/train.txt, dev.txt and test.txt "
                "(the authors' data: github.com/hendrycks/GELUs)."
            )
        if not is_file(self.vector_file):
            raise DataError(
                f"There are no word {'clusters' if self.uses_clusters else 'vectors'} at {str(self.vector_file)!r}. "
                "Give vectors= a text file, a word and its vector on each line (the paper's: embeddings-twitter.txt), "
                "or clusters= the file 50mpaths2 of ark-tweet-nlp as a substitute; a path is absolute or from the "
                "folder of the tweets on."
            )

    def load_train_and_val(self) -> tuple[InMemorySamples, InMemorySamples]:
        """Read the training tweets (14,619 tokens), the validation tweets (4,823) and their words' vectors."""
        train, val = self._read("train.txt", "dev.txt")
        return train, val

    def load_test(self) -> InMemorySamples:
        """Read the test tweets (7,152 tokens) and their words' vectors."""
        return self._read("test.txt")[0]

    def _read(self, *names: str) -> list[InMemorySamples]:
        self.prepare_data()  # files may be missing on a node where Lightning has not called it
        if self._table is None:  # the vectors of all sets, from their file, which is read once: it may be large
            tokens = [token for name in _FILES for tweet in read_tweets(self.folder / name) for token in tweet.tokens]
            read = read_cluster_vectors if self.uses_clusters else read_word_vectors
            vectors = read(self.vector_file, set(tokens))
            check_coverage(self.vector_file, tokens, vectors)
            self._table = {word: row for row, word in enumerate(vectors)}, torch.stack(list(vectors.values()))
        parts = [read_tweets(self.folder / name) for name in names]
        return [
            InMemorySamples(windows(part, *self._table), torch.tensor([tag for tweet in part for tag in tweet.tags]))
            for part in parts
        ]


def check_coverage(path: Path, tokens: Collection[str], vectors: Collection[str]) -> None:
    """Refuse a file without any word of the tweets, and warn where it lacks many: it may be cut off, or another."""
    without = sum(token not in vectors for token in tokens)
    if without == len(tokens):
        raise DataError(
            f"{str(path)!r} has no word of the tweets: every token would have the vector of {UNKNOWN!r}. It may be "
            "empty, cut off, or of another language; give the whole file, as it was published."
        )
    if without > _MOST_WITHOUT * len(tokens):
        warnings.warn(
            f"{str(path)!r} has no vector for {without / len(tokens):.1%} of the tweets' tokens; they all have that of "
            f"{UNKNOWN!r}. The whole 50mpaths2 lacks 2.5%. Check that the file is not cut off.",
            stacklevel=2,
        )


def read_tweets(path: Path) -> list[Tweet]:
    """Read tagged tweets: ``token<TAB>tag`` on each line, a blank line after each tweet but, if it is so, the last."""
    tweets: list[list[tuple[str, int]]] = [[]]
    for number, line in numbered_lines(path):
        if not line:
            tweets.append([])
            continue
        token, _, tag = line.partition("\t")
        if not token or tag not in TAGS:
            raise DataError(
                f"{str(path)!r}, line {number}: {shown(line)} given, expected token<TAB>tag, the tag one of "
                f"{' '.join(TAGS)}. Mend the line, or map the tags of another tag set to these."
            )
        tweets[-1].append((token, TAGS.index(tag)))
    if not (read := [Tweet(*zip(*tweet, strict=True)) for tweet in tweets if tweet]):
        raise DataError(f"{str(path)!r} holds no tweet. Give a file with token<TAB>tag on each line.")
    return read


def windows(tweets: list[Tweet], rows: Mapping[str, int], vectors: Tensor) -> Tensor:
    """Concatenate the vectors of a token's left neighbour, the token and its right one: ``[tokens, 3 * size]``."""
    numbers = []
    for tweet in tweets:  # they do not see each other: ``</s>`` stands on both sides of each
        token_rows = [rows.get(token, rows[UNKNOWN]) for token in tweet.tokens]
        numbers.append(torch.tensor([rows[PADDING], *token_rows, rows[PADDING]]).unfold(0, 3, 1))
    return vectors[torch.cat(numbers)].flatten(start_dim=1)
