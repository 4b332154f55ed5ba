"""TweetData and its vectors on files made here, and on the real ones where LIT_GELU_DATA names them."""

import hashlib
import warnings

import numpy as np
import pytest
import torch
from data_checkpoints import loaded_from_checkpoint
from tweet_files import VECTORS, write_tweets

from lit_gelu.data import TweetData
from lit_gelu.data.tweets import (
    TAGS,
    Tweet,
    cluster_vector,
    read_cluster_vectors,
    read_tweets,
    read_word_vectors,
    signs,
)
from lit_gelu.errors import DataError

pytestmark = pytest.mark.filterwarnings("ignore:.* has no vector for .* of the tweets' tokens")  # five words have one
SETS = {"train": "abcdef", "dev": "gh", "test": "ij"}
PAD, UNKNOWN = [1.0, -1.0], [0.5, 0.5]
RT, MENTION, LOL, WONT = [1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]


def test_the_tags_have_the_numbers_of_the_authors():
    assert len(TAGS) == 25
    assert " ".join(TAGS) == "N O S ^ Z L M V A R ! D P & T X Y # @ ~ U E $ , G"


def test_windows_with_padding_and_unknown_words(tmp_path):
    data = TweetData(write_tweets(tmp_path), batch_size=2, vectors="vectors.txt")
    data.prepare_data()
    data.setup()
    assert data.train_set.inputs.tolist() == [
        PAD + RT + MENTION,
        RT + MENTION + UNKNOWN,
        MENTION + UNKNOWN + PAD,
        PAD + LOL + WONT,
        LOL + WONT + PAD,
    ]
    assert data.train_set.labels.tolist() == [19, 18, 19, 10, 7]
    assert data.val_set.inputs.tolist() == [PAD + UNKNOWN + UNKNOWN, UNKNOWN + UNKNOWN + PAD]
    assert data.test_set.inputs.tolist() == [PAD + UNKNOWN + PAD, PAD + LOL + UNKNOWN, LOL + UNKNOWN + PAD]
    assert data.test_set.labels.tolist() == [7, 10, 21]
    assert (data.test_set.inputs.dtype, data.test_set.labels.dtype) == (torch.float32, torch.int64)
    assert len(data.train_dataloader()) == 2  # the fifth token is dropped


def test_windows_of_cluster_vectors(tmp_path):
    data = TweetData(write_tweets(tmp_path), clusters="clusters.txt")
    data.setup("test")
    pad, unknown = signs("</s>"), signs("UUUNKKK")
    win, lol = cluster_vector("1111111111111111"), cluster_vector("00010")
    expected = [[pad, win, pad], [pad, lol, unknown], [lol, unknown, pad]]
    assert torch.equal(data.test_set.inputs, torch.stack([torch.cat(window) for window in expected]))


def test_what_is_recorded_says_whose_vectors(tmp_path):
    note = "bit paths of 50mpaths2, not the paper's vectors"
    data = TweetData("here", clusters="50mpaths2")
    assert dict(data.hparams) == {"batch_size": 16, "clusters": "50mpaths2"}
    assert dict(data.hparams_initial) == {**data.hparams, "substitute": note}  # what loggers are given
    assert dict(TweetData("here").hparams) == {"batch_size": 16, "vectors": "embeddings-twitter.txt"}
    assert dict(TweetData("here", vectors=tmp_path / "mine.txt").hparams) == {"batch_size": 16, "vectors": "mine.txt"}
    assert TweetData("here", vectors=tmp_path / "mine.txt").vector_file == tmp_path / "mine.txt"


@pytest.mark.parametrize(
    "options", [{"vectors": "vectors.txt"}, {"clusters": "clusters.txt"}, {"vectors": "sub/mine.txt"}]
)
def test_a_module_is_loaded_from_its_own_checkpoint(tmp_path, monkeypatch, options):
    data = TweetData(write_tweets(tmp_path), batch_size=2, **options)
    (data.folder / "sub").mkdir()
    (data.folder / "sub" / "mine.txt").write_text(VECTORS)
    monkeypatch.setenv("LIT_GELU_DATA", str(tmp_path))
    loaded = loaded_from_checkpoint(data, tmp_path / "run.ckpt")
    assert (loaded.vector_file, loaded.uses_clusters) == (data.vector_file, data.uses_clusters)
    assert dict(loaded.hparams) == dict(data.hparams)
    for module in (data, loaded):
        module.setup()
    assert torch.equal(loaded.train_set.inputs, data.train_set.inputs)


@pytest.mark.parametrize(("words", "share"), [(8, "20.0%"), (9, None), (10, None)])
@pytest.mark.parametrize("option", ["clusters", "vectors"])
def test_the_share_of_tokens_without_a_vector_is_said_where_it_is_large(tmp_path, option, words, share):
    """Of ten different tokens in all sets, so many have one."""
    tokens = "abcdefghij"[:words]
    tweets = {name: "".join(f"{token}\tO\n" for token in part) for name, part in SETS.items()}
    vectors = "UUUNKKK 1 1\n</s> 1 -1\n" + "".join(f"{word} 2 2\n" for word in tokens)
    clusters = "".join(f"01\t{word}\t40\n" for word in tokens)
    root = write_tweets(tmp_path, **tweets, vectors=vectors, clusters=clusters)
    data = TweetData(root, batch_size=2, **{option: f"{option}.txt"})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data.setup()
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == (share is not None)
    assert all(f"{option}.txt' has no vector for {share} of the tweets' tokens" in text for text in messages)


@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\n\n\n\n"])
def test_the_last_tweet_is_read_however_the_file_ends(tmp_path, end):
    path = tmp_path / "tweets.txt"
    path.write_bytes(f"\ni\tO\r\nwin\tV\r\n\r\n\r\n\u2028\tX{end}".encode())
    assert read_tweets(path) == [Tweet(("i", "win"), (1, 7)), Tweet(("\u2028",), (15,))]


@pytest.mark.parametrize("content", ["i\tO\nwin\tVERB\n", "i\tO\nwin\n", "\tO\n", "i\tO\t1\n", "", "\n\n"])
def test_spoilt_tweets(tmp_path, content):
    with pytest.raises(DataError):
        TweetData(write_tweets(tmp_path, train=content), vectors="vectors.txt").setup("fit")


@pytest.mark.realdata
def test_the_real_tweets():
    """Counts of tweets, tokens and tags, and the share of tokens in a cluster, counted outside with cut and sort."""
    data = TweetData(clusters="50mpaths2")
    if not data.folder.is_dir():
        pytest.skip("LIT_GELU_DATA has no folder tweets")
    tweets = {name: read_tweets(data.folder / f"{name}.txt") for name in ("train", "dev", "test")}
    assert [len(read) for read in tweets.values()] == [1000, 327, 500]
    data.setup()
    parts = (data.train_set, data.val_set, data.test_set)
    assert [len(part) for part in parts] == [14_619, 4_823, 7_152]
    assert [len(part.labels.unique()) for part in parts] == [25, 23, 23]
    assert torch.bincount(data.train_set.labels)[[7, 0, 23, 16]].tolist() == [2219, 2003, 1715, 2]
    assert len(data.train_dataloader()) == 913
    for part, coverage in zip(parts, (0.975, 0.971, 0.977), strict=True):
        unknown = (part.inputs[:, 50:100] == signs("UUUNKKK")).all(dim=1).float().mean().item()
        assert 1 - unknown == pytest.approx(coverage, abs=5e-4)


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


@pytest.mark.parametrize("line", ["0000 i 40", "0000\ti", "0120\ti\t40", "\ti\t40", "0" * 17 + "\ti\t40", ""])
def test_spoilt_clusters(tmp_path, line):
    with pytest.raises(DataError):
        read_cluster_vectors(written(tmp_path, f"0000\ti\t40\n{line}\n"), {"i"})
