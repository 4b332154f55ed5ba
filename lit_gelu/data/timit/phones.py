"""TIMIT's 61 phones, the 39 classes that they are folded into, and the phone of each frame."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lit_gelu.data.errors import CorruptDataError, DataNotFoundError
from lit_gelu.errors import shown
from lit_gelu.files import is_file

GLOTTAL_STOP = "q"
_DIGITS = 9  # of a time: 10**9 samples are 17 hours, a sentence of TIMIT has 8 seconds
_ALONE = "ae aw ay b ch d dh dx eh ey f g iy jh k ow oy p r s t th uh v w y z"
_FOLDED_INTO = {
    **{name: name for name in _ALONE.split()},
    "aa": "aa ao",
    "ah": "ah ax ax-h",
    "er": "er axr",
    "hh": "hh hv",
    "ih": "ih ix",
    "l": "l el",
    "m": "m em",
    "n": "n en nx",
    "ng": "ng eng",
    "sh": "sh zh",
    "sil": "pcl tcl kcl bcl dcl gcl h# pau epi q",
    "uw": "uw ux",
}
CLASSES = tuple(sorted(_FOLDED_INTO))
CLASS_OF = {phone: name for name, phones in _FOLDED_INTO.items() for phone in phones.split()}
PHONES = tuple(sorted(CLASS_OF))


class Segments(NamedTuple):
    """The phones of a sentence in order: where each ends, in samples from the start, and its number in `PHONES`."""

    ends: Tensor
    phones: Tensor


def class_numbers() -> Tensor:
    """Return the class of each of the 61 phones (Lee and Hon 1989, "Speaker-independent phone recognition")."""
    # The glottal stop ``q``, which that folding leaves out, counts as silence here.
    return torch.tensor([CLASSES.index(CLASS_OF[phone]) for phone in PHONES])


def read_phones(path: Path) -> Segments:
    """Read the phones of a sentence: ``begin end phone`` on each line, in samples, in order of time."""
    if not is_file(path):
        raise DataNotFoundError(
            f"There is no {path.name} beside the audio in {str(path.parent)!r}. Copy the corpus again with the .phn "
            "files, which hold the phones and their times."
        )
    ends, phones = [0], []
    for number, line in enumerate(path.read_text(encoding="latin-1").splitlines(), start=1):
        if line.strip():
            end, phone = _segment(line, f"{str(path)!r}, line {number}", ends[-1])
            ends.append(end)
            phones.append(phone)
    if not phones:
        raise CorruptDataError(f"{str(path)!r} holds no phone. Copy the file again from the corpus.")
    return Segments(torch.tensor(ends[1:]), torch.tensor(phones))


def phones_at(segments: Segments, samples: Tensor) -> Tensor:
    """Return the phone at some moments; before the first phone and after the last, the nearest."""
    # A phone lasts from the end of the one before, exclusive of its own end.
    positions = torch.searchsorted(segments.ends, samples, right=True)
    return segments.phones[positions.clamp(max=len(segments.ends) - 1)]


def _segment(line: str, place: str, before: int) -> tuple[int, int]:
    """Return the end of a line's phone and the phone's number."""
    fields = line.split()
    is_segment = len(fields) == 3 and all(time.isdecimal() and len(time) <= _DIGITS for time in fields[:2])
    if not is_segment or int(fields[1]) < max(int(fields[0]), before):
        raise CorruptDataError(
            f"{place}: {shown(line)} given, expected 'begin end phone' in samples, not before {before}. Copy the "
            "file again from the corpus."
        )
    phone = fields[2]
    if phone not in CLASS_OF:
        raise CorruptDataError(
            f"{place}: the phone {shown(phone)} is not one of TIMIT's 61: {' '.join(PHONES)}. Mend the line, or copy "
            "the file again from the corpus."
        )
    return int(fields[1]), PHONES.index(phone)
