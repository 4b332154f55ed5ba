"""Folding 61 phones into 39, reading phone files, and the phone at a frame's centre."""

import os
from pathlib import Path

import pytest
import torch

from lit_gelu.data.timit.corpus import CLASS_OF, CLASSES, PHONES, Segments, class_numbers, phones_at, read_phones
from lit_gelu.data.timit.features import frame_centres
from lit_gelu.errors import DataError

# Lee and Hon 1989, table 3, and the closures, pauses and silences as one class.
FOLDS = {
    "aa": {"ao"},
    "ah": {"ax", "ax-h"},
    "er": {"axr"},
    "hh": {"hv"},
    "ih": {"ix"},
    "l": {"el"},
    "m": {"em"},
    "n": {"en", "nx"},
    "ng": {"eng"},
    "sh": {"zh"},
    "uw": {"ux"},
    "sil": {"pcl", "tcl", "kcl", "bcl", "dcl", "gcl", "h#", "pau", "epi", "q"},
}


def test_61_phones_become_39():
    assert (len(PHONES), len(set(PHONES)), len(CLASSES), len(set(CLASSES))) == (61, 61, 39, 39)
    for phone in PHONES:
        expected = next((name for name, folded in FOLDS.items() if phone in folded), phone)
        assert CLASS_OF[phone] == expected
        assert CLASSES[class_numbers()[PHONES.index(phone)]] == expected


@pytest.mark.realdata
def test_the_folding_against_kaldis_table():
    path = Path(os.environ["LIT_GELU_DATA"]) / "timit" / "facts" / "phones.60-48-39.map"
    if not path.is_file():
        pytest.skip("LIT_GELU_DATA has no timit/facts")
    rows = {line.split()[0]: line.split()[-1] for line in path.read_text().splitlines()}
    assert rows.pop("q") == "q"  # Kaldi leaves it out
    assert rows == {phone: name for phone, name in CLASS_OF.items() if phone != "q"}


def test_the_phone_at_a_frame_centre():
    """Centres are at 200, 360, 520, ...: a phone holds its begin, not its end."""
    segments = Segments(torch.tensor([200, 361, 520, 681]), torch.tensor([3, 5, 7, 9]))
    assert phones_at(segments, frame_centres(5)).tolist() == [5, 5, 9, 9, 9]


def test_phones_of_a_file_that_does_not_begin_at_zero_or_has_gaps(tmp_path):
    path = tmp_path / "sx1.phn"
    path.write_text("300 400 h#\n\n500 600 iy\n600 600 k\n600 700 h#\n")
    segments = read_phones(path)
    names = [PHONES[number] for number in phones_at(segments, torch.tensor([0, 399, 450, 599, 600, 800]))]
    assert names == ["h#", "h#", "iy", "iy", "h#", "h#"]


@pytest.mark.parametrize(
    "content",
    [
        "0 100 h#\n100 200 ee\n",
        "0 100 h#\n100 200\n",
        "0 100 h# h#\n",
        "0 1.5 h#\n",
        "0 -5 h#\n",
        "200 100 h#\n",
        f"0 {10**29} h#\n",
        f"{'9' * 5000} {'9' * 5000} h#\n",
        "0 100 h#\n0 50 iy\n",
        "",
    ],
)
def test_spoilt_files(tmp_path, content):
    (tmp_path / "sx1.phn").write_text(content)
    with pytest.raises(DataError):
        read_phones(tmp_path / "sx1.phn")


def test_a_missing_file(tmp_path):
    with pytest.raises(DataError):
        read_phones(tmp_path / "sx1.phn")
