"""What `choose` keeps of data modules is as it was kept before: runs of an earlier version are known again."""

import pytest
from choice_nets import Stripes
from timit_files import write_sample
from tweet_files import write_tweets

from lit_gelu.choose.kept_settings import settings_of_data
from lit_gelu.data import TIMITData, TweetData


@pytest.mark.filterwarnings("ignore:.* has no vector for .* of the tweets' tokens")  # five words have one
@pytest.mark.parametrize(
    ("given", "vectors"),
    [
        ({"vectors": "vectors.txt"}, "'vectors.txt'"),
        ({"clusters": "clusters.txt"}, '"bit paths of clusters.txt, not the paper\'s vectors"'),
    ],
)
def test_tweets(tmp_path, given, vectors):
    data = TweetData(write_tweets(tmp_path), batch_size=2, **given)
    data.setup()
    # As the choice.json of the version before `clusters` was a hyper-parameter has it.
    assert settings_of_data(data, [])["data_arguments"] == {"batch_size": "2", "vectors": vectors}


def test_timit(tmp_path):
    data = TIMITData(write_sample(tmp_path), batch_size=1, cache=tmp_path / "kept", order="seed")
    data.setup()
    assert settings_of_data(data, [])["data_arguments"] == {
        "batch_size": "1",
        "centre_twice": "False",
        "corpus": "\"TIMIT, NLTK's sample split by speaker, NOT THE PAPER'S CORPUS: 1 training sentences (1 speakers), "
        '1 validation sentences (1 speakers), 1 test sentences (1 speakers)"',
        "glottal_stop": "'sil'",
        "order": "'seed'",
        "padded_statistics": "False",
    }


def test_others_are_told_by_their_hyper_parameters():
    data = Stripes(size=28)
    assert settings_of_data(data, [])["data_arguments"].keys() == data.hparams.keys()
