"""What a file holds is quoted in messages, but not a million characters of it."""

import pytest

from lit_gelu.data import CorruptDataError
from lit_gelu.data.timit.phones import read_phones
from lit_gelu.data.tweets import read_tweets
from lit_gelu.data.word_vectors import read_cluster_vectors, read_word_vectors

LONG = "x" * 1_000_000


@pytest.mark.parametrize(
    ("read", "content"),
    [
        (read_phones, LONG),
        (read_phones, f"0 100 {LONG}"),
        (read_tweets, LONG),
        (read_tweets, f"lol\t{LONG}"),
        (lambda path: read_word_vectors(path, ()), LONG),
        (lambda path: read_word_vectors(path, ()), f"</s> {LONG}"),
        (lambda path: read_cluster_vectors(path, ()), LONG),
    ],
)
def test_a_message_quotes_the_beginning_and_the_end_of_a_long_line(tmp_path, read, content):
    (tmp_path / "text").write_text(content)
    with pytest.raises(CorruptDataError, match=r"xxx\.\.\.xxx") as caught:
        read(tmp_path / "text")
    assert len(str(caught.value)) < 1000
