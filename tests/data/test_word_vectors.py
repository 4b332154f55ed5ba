"""Word vectors in text form and vectors of clusters' bit paths."""

import hashlib
import itertools
import random

import numpy as np
import pytest
import torch

from lit_gelu.data.tweets import cluster_vector, read_cluster_vectors, read_word_vectors, signs
from lit_gelu.errors import DataError

PLACEHOLDERS = "UUUNKKK 0.5 -1e-3\n</s> 1 2\n"


def written(tmp_path, content):
    path = tmp_path / "vectors.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("header", ["", "4 2\n"])
@pytest.mark.parametrize("separator", [" ", "\t", "  "])
@pytest.mark.parametrize("end", ["\n", "\r\n", " \n"])
def test_the_forms_of_word2vec_and_glove(tmp_path, header, separator, end):
    content = (header + PLACEHOLDERS + "lol 3 4\na\u00a0b 5 6\nlol 7 8\nother 9 9\n").replace(" ", separator)
    vectors = read_word_vectors(written(tmp_path, content.replace("\n", end)), {"lol", "a\u00a0b", "rofl"})
    assert {word: vector.tolist() for word, vector in vectors.items()} == {
        "UUUNKKK": [0.5, pytest.approx(-1e-3)],
        "</s>": [1.0, 2.0],
        "lol": [3.0, 4.0],  # the first of two
        "a\u00a0b": [5.0, 6.0],
    }
    assert vectors["lol"].dtype == torch.float32


@pytest.mark.parametrize(
    "content",
    [
        "lol 1 2\n</s> 1 2\n",
        "UUUNKKK 1 2\n",
        "",
        PLACEHOLDERS + "lol 1\n",
        PLACEHOLDERS + "lol 1 2 3\n",
        PLACEHOLDERS + "\n",
        PLACEHOLDERS + "lol 1 x\n",
        PLACEHOLDERS + "lol 1 nan\n",
        PLACEHOLDERS + "lol 1 1e39\n",
        b"\xff\xfe\n",
    ],
)
def test_spoilt_vectors(tmp_path, content):
    with pytest.raises(DataError):
        read_word_vectors(written(tmp_path, content), {"lol"})


def test_signs_are_the_bits_of_sha256():
    for text in ("0", "</s>", "0110"):
        lowest_first = np.unpackbits(
            np.frombuffer(hashlib.sha256(text.encode()).digest()[::-1], np.uint8), bitorder="little"
        )
        assert signs(text).tolist() == (2.0 * lowest_first[:50] - 1).tolist()


def test_cluster_vectors_are_the_sums_over_prefixes():
    path = "0110111011101110"
    expected = np.sum([signs(path[: k + 1]).numpy() for k in range(16)], axis=0) / 4
    np.testing.assert_allclose(cluster_vector(path).numpy(), expected, rtol=1e-6)


def test_words_of_neighbouring_clusters_have_the_inner_products_of_their_common_prefixes():
    """E[v(p) . v(q)] = 50 c / sqrt(|p| |q|), c the length of the common prefix."""
    numbers = random.Random(0)
    paths = ["".join(numbers.choices("01", k=numbers.randint(4, 16))) for _ in range(60)]
    vectors = [cluster_vector(path) for path in paths]
    differences = []
    for (one, v), (other, w) in itertools.combinations(zip(paths, vectors, strict=True), 2):
        common = sum(itertools.takewhile(bool, map(str.__eq__, one, other)))
        differences.append((v @ w).item() - 50 * common / (len(one) * len(other)) ** 0.5)
    differences = np.array(differences)
    assert differences.std() < 2 * np.sqrt(50)  # one product of sums of signs deviates by sqrt(50) or a little more
    assert abs(differences.mean()) < 3


@pytest.mark.parametrize("line", ["0000 i 40", "0000\ti", "0120\ti\t40", "\ti\t40", "0" * 17 + "\ti\t40", ""])
def test_spoilt_clusters(tmp_path, line):
    with pytest.raises(DataError):
        read_cluster_vectors(written(tmp_path, f"0000\ti\t40\n{line}\n"), {"i"})
