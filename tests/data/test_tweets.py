"""TweetData on files made here, and on the real ones where LIT_GELU_DATA names them."""

import io
import pickle
import warnings

import pytest
import torch
from data_checkpoints import loaded_from_checkpoint
from torch.utils.data import RandomSampler
from tweet_files import VECTORS, write_tweets

from lit_gelu.data import CorruptDataError, DataArgumentError, DataNotFoundError, TweetData
from lit_gelu.data.tweets import TAGS, Tweet, read_tweets
from lit_gelu.data.word_vectors import cluster_vector, signs

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
    assert isinstance(data.train_dataloader().sampler, RandomSampler)


def test_windows_of_cluster_vectors(tmp_path):
    data = TweetData(write_tweets(tmp_path), clusters="clusters.txt")
    data.setup("test")
    pad, unknown = signs("</s>"), signs("UUUNKKK")
    win, lol = cluster_vector("1111111111111111"), cluster_vector("00010")
    expected = [[pad, win, pad], [pad, lol, unknown], [lol, unknown, pad]]
    assert torch.equal(data.test_set.inputs, torch.stack([torch.cat(window) for window in expected]))


def test_the_file_of_vectors_is_read_once_for_all_sets(tmp_path):
    data = TweetData(write_tweets(tmp_path), batch_size=2, vectors="vectors.txt")
    data.setup("fit")
    (data.folder / "vectors.txt").write_text("another file by now")
    data.setup("test")
    assert data.test_set.inputs.tolist()[1] == PAD + LOL + UNKNOWN


class _TensorsApart(pickle.Pickler):
    """Pickles but tensors, which it counts: on its way to another process each takes a file descriptor."""

    def __init__(self, file):
        super().__init__(file)
        self.storages = set()

    def persistent_id(self, value):
        if isinstance(value, torch.Tensor):
            self.storages.add(value.untyped_storage().data_ptr())
            return True
        return None


def test_a_module_that_is_set_up_goes_to_other_processes_with_few_tensors(tmp_path):
    data = TweetData(write_tweets(tmp_path), batch_size=2, vectors="vectors.txt")
    data.setup()
    pickler = _TensorsApart(io.BytesIO())
    pickler.dump(data)
    assert len(pickler.storages) <= 7  # inputs and labels of three sets, and what all words have


def test_a_module_that_was_pickled_before_vectors_were_kept(tmp_path):
    data = TweetData(write_tweets(tmp_path), batch_size=2, vectors="vectors.txt")
    vars(data).pop("_table", None)
    loaded = pickle.loads(pickle.dumps(data))
    loaded.setup()
    assert loaded.test_set.inputs.tolist()[1] == PAD + LOL + UNKNOWN


def test_what_is_recorded_says_whose_vectors(tmp_path):
    said = "bit paths of 50mpaths2, not the paper's vectors"
    data = TweetData("here", clusters="50mpaths2", order="seed")
    assert dict(data.hparams) == {"batch_size": 16, "order": "seed", "clusters": "50mpaths2"}
    assert dict(data.hparams_initial) == {**data.hparams, "substitute": said}  # what loggers are given
    assert data.description() == {"batch_size": 16, "order": "seed", "vectors": said}  # as records of old have it
    for given in ("sub/mine.txt", tmp_path / "mine.txt"):
        assert TweetData("here", vectors=given).description() == {"batch_size": 16, "vectors": "mine.txt"}
    assert dict(TweetData("here").hparams) == {"batch_size": 16, "vectors": "embeddings-twitter.txt"}
    assert dict(TweetData("here", vectors=tmp_path / "mine.txt").hparams) == {"batch_size": 16, "vectors": "mine.txt"}
    assert TweetData("here", vectors=tmp_path / "mine.txt").vector_file == tmp_path / "mine.txt"


@pytest.mark.parametrize(
    "given", [{"vectors": "vectors.txt"}, {"clusters": "clusters.txt"}, {"vectors": "sub/mine.txt", "order": "seed"}]
)
def test_a_module_is_loaded_from_its_own_checkpoint(tmp_path, monkeypatch, given):
    data = TweetData(write_tweets(tmp_path), batch_size=2, **given)
    (data.folder / "sub").mkdir()
    (data.folder / "sub" / "mine.txt").write_text(VECTORS)
    monkeypatch.setenv("LIT_GELU_DATA", str(tmp_path))
    loaded = loaded_from_checkpoint(data, tmp_path / "run.ckpt")
    assert (loaded.vector_file, loaded.uses_clusters) == (data.vector_file, data.uses_clusters)
    assert dict(loaded.hparams) == dict(data.hparams)
    for module in (data, loaded):
        module.setup()
    assert torch.equal(loaded.train_set.inputs, data.train_set.inputs)


class _Subclass(TweetData):
    """As users write them: all arguments go on to the class above."""

    def __init__(self, **given):
        super().__init__(**given)


def test_a_subclass_is_loaded_from_its_own_checkpoint(tmp_path, monkeypatch):
    data = _Subclass(root=write_tweets(tmp_path), batch_size=2, clusters="clusters.txt")
    monkeypatch.setenv("LIT_GELU_DATA", str(tmp_path))
    assert loaded_from_checkpoint(data, tmp_path / "run.ckpt").vector_file == data.vector_file


@pytest.mark.filterwarnings("ignore:.*LeafSpec")  # Lightning's own; pytest.warns hands it on
def test_a_checkpoint_does_not_say_where_absolute_vectors_were(tmp_path, monkeypatch):
    """Those of the same name in another folder are not taken for them without a word."""
    (tmp_path / "other").mkdir()
    mine = tmp_path / "other" / "vectors.txt"
    mine.write_text(VECTORS)
    monkeypatch.setenv("LIT_GELU_DATA", str(write_tweets(tmp_path)))
    data, file = TweetData(batch_size=2, vectors=mine), tmp_path / "run.ckpt"
    with pytest.warns(UserWarning, match=r"vectors= was an absolute path .*tweets/vectors\.txt' is read now"):
        loaded_from_checkpoint(data, file)
    for given in ({"vectors": mine}, {"vectors": None, "clusters": "clusters.txt"}):
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            TweetData.load_from_checkpoint(file, weights_only=True, **given)


@pytest.mark.parametrize(
    ("option", "content"),
    [("clusters", ""), ("clusters", "0000\tautre\t40\n"), ("vectors", "UUUNKKK 1 1\n</s> 1 -1\nautre 2 2\n")],
)
def test_a_file_without_any_word_of_the_tweets_is_refused(tmp_path, option, content):
    data = TweetData(write_tweets(tmp_path, **{option: content}), **{option: f"{option}.txt"})
    with pytest.raises(CorruptDataError, match=rf"{option}\.txt' has no word of the tweets"):
        data.setup("fit")


@pytest.mark.parametrize(("words", "share"), [(8, "20.0%"), (9, None), (10, None)])
@pytest.mark.parametrize("option", ["clusters", "vectors"])
def test_the_share_of_tokens_without_a_vector_is_said_where_it_is_large(tmp_path, option, words, share):
    """Of ten different tokens in all sets, so many have one."""
    known = "abcdefghij"[:words]
    tweets = {name: "".join(f"{token}\tO\n" for token in part) for name, part in SETS.items()}
    vectors = "UUUNKKK 1 1\n</s> 1 -1\n" + "".join(f"{word} 2 2\n" for word in known)
    clusters = "".join(f"01\t{word}\t40\n" for word in known)
    root = write_tweets(tmp_path, **tweets, vectors=vectors, clusters=clusters)
    data = TweetData(root, batch_size=2, **{option: f"{option}.txt"})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data.setup()
    said = [str(warning.message) for warning in caught]
    assert len(said) == (share is not None)
    assert all(f"{option}.txt' has no vector for {share} of the tweets' tokens" in text for text in said)


@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\n\n\n\n"])
def test_the_last_tweet_is_read_however_the_file_ends(tmp_path, end):
    path = tmp_path / "tweets.txt"
    path.write_bytes(f"\ni\tO\r\nwin\tV\r\n\r\n\r\n\u2028\tX{end}".encode())
    assert read_tweets(path) == [Tweet(("i", "win"), (1, 7)), Tweet(("\u2028",), (15,))]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("i\tO\nwin\tVERB\n", r"line 2: the tag 'VERB' is not one of the 25: N O S \^ .*map the tags"),
        ("i\tO\nwin\n", r"line 2: 'win' given, expected token<TAB>tag"),
        ("\tO\n", r"line 1: .*expected token<TAB>tag"),
        ("i\tO\t1\n", r"line 1: the tag 'O\\t1'"),
        ("", "holds no tweet"),
        ("\n\n", "holds no tweet"),
    ],
)
def test_spoilt_tweets(tmp_path, content, message):
    with pytest.raises(CorruptDataError, match=message):
        TweetData(write_tweets(tmp_path, train=content), vectors="vectors.txt").setup("fit")


def test_an_empty_folder(tmp_path):
    for data in (TweetData(tmp_path), TweetData(tmp_path, clusters="50mpaths2")):
        with pytest.raises(DataNotFoundError, match=r"missing: train\.txt, dev\.txt, test\.txt.*LIT_GELU_DATA"):
            data.prepare_data()
        with pytest.raises(DataNotFoundError, match="missing"):
            data.setup("fit")


@pytest.mark.parametrize("given", [{}, {"vectors": "mine.txt"}, {"clusters": "50mpaths2"}])
def test_missing_vectors(tmp_path, given):
    name = next(iter(given.values()), "embeddings-twitter.txt")
    with pytest.raises(DataNotFoundError, match=rf"no word (vectors|clusters) at '.*{name}'.*vectors=.*clusters="):
        TweetData(write_tweets(tmp_path), **given).prepare_data()


def test_missing_placeholders(tmp_path):
    content = VECTORS.replace("UUUNKKK", "<unk>")
    with pytest.raises(CorruptDataError, match="no vector for 'UUUNKKK'"):
        TweetData(write_tweets(tmp_path, vectors=content), vectors="vectors.txt").setup("fit")


def test_vectors_and_clusters_together():
    with pytest.raises(DataArgumentError, match=r"vectors='a' and clusters='b' given; accepted: one of them"):
        TweetData(vectors="a", clusters="b")


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
