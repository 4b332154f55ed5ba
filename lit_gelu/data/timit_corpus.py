"""TIMIT's sentences in a folder: who belongs to training, validation and test, their audio and their phones."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lit_gelu.errors import DataError, shown
from lit_gelu.extras import need
from lit_gelu.files import is_file, is_folder, require_no_pipe

SAMPLE_RATE = 16_000
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
        raise DataError(f"There is no {path.name} beside the audio in {str(path.parent)!r}. Copy the corpus again.")
    ends, phones = [0], []
    for number, line in enumerate(path.read_text(encoding="latin-1").splitlines(), start=1):
        match line.split():
            case []:
                continue
            case [begin, end, phone] if all(time.isdecimal() and len(time) <= _DIGITS for time in (begin, end)):
                is_segment = int(end) >= max(int(begin), ends[-1]) and phone in CLASS_OF
            case _:
                is_segment = False
        if not is_segment:
            raise DataError(
                f"{str(path)!r}, line {number}: {shown(line)} given, expected 'begin end phone' in samples, not before "
                f"{ends[-1]}, and one of {' '.join(PHONES)}. Copy the file again from the corpus."
            )
        ends.append(int(end))
        phones.append(PHONES.index(phone))
    if not phones:
        raise DataError(f"{str(path)!r} holds no phone. Copy the file again from the corpus.")
    return Segments(torch.tensor(ends[1:]), torch.tensor(phones))


def phones_at(segments: Segments, samples: Tensor) -> Tensor:
    """Return the phone at some moments; before the first phone and after the last, the nearest."""
    # A phone lasts from the end of the one before, exclusive of its own end.
    return segments.phones[torch.searchsorted(segments.ends, samples, right=True).clamp(max=len(segments.ends) - 1)]


def read_audio(path: Path) -> Tensor:
    """Read a recording of one channel with 16 bits a sample at 16 kHz."""
    soundfile = need("soundfile", extra="speech", what="Reading TIMIT's audio")
    require_no_pipe(path)
    try:
        with soundfile.SoundFile(path) as file:
            if (file.samplerate, file.channels, file.subtype) != (SAMPLE_RATE, 1, "PCM_16"):
                raise DataError(
                    f"{str(path)!r} holds {file.channels} channels of {file.subtype} at {file.samplerate} Hz; "
                    f"accepted: 1 channel of PCM_16 at {SAMPLE_RATE} Hz, as TIMIT has. Use the original files, or "
                    f"convert: sox IN -c 1 -b 16 -r {SAMPLE_RATE} OUT.wav."
                )
            return torch.from_numpy(file.read(dtype="int16"))
    except soundfile.LibsndfileError as error:
        raise DataError(
            f"{str(path)!r} cannot be read as audio ({error.error_string.strip() or error.code}). Copy it again from "
            "the corpus; what shorten has packed is unpacked by sph2pipe -f wav IN OUT."
        ) from error


# The core test set, two men and one woman of each dialect region (TIMIT's own documentation, testset.doc, table 1).
_CORE_TEST = {
    1: "mdab0 mwbt0 felc0",
    2: "mtas1 mwew0 fpas0",
    3: "mjmp0 mlnt0 fpkt0",
    4: "mlll0 mtls0 fjlm0",
    5: "mbpm0 mklt0 fnlp0",
    6: "mcmj0 mjdh0 fmgd0",
    7: "mgrt0 mnjm0 fdhc0",
    8: "mjln0 mpam0 fmld0",
}
CORE_TEST_SPEAKERS = frozenset(speaker for speakers in _CORE_TEST.values() for speaker in speakers.split())
# Of the sample's 16 speakers, a woman and a man each; a split of this package, since all 16 are training speakers.
_SAMPLE_SPEAKERS = {"val": {"falk0", "mbma1"}, "test": {"ftlg0", "madd0"}}
_WHAT_TO_GIVE = (
    "Give root=, or set the environment variable LIT_GELU_DATA, to the folder that holds timit: either the full corpus "
    "(LDC93S1, timit/TRAIN/DR1/FCJF0/SX37.WAV, from the Linguistic Data Consortium) or NLTK's sample of it "
    "(timit/dr1-fvmh0/sx26.wav, nltk.download('timit')). corpus= names another folder."
)
FULL_SENTENCES = (3696, 1152, 192)
_FULL = re.compile(r"(?:.*/)?(train|test)/dr[1-8]/([fm][a-z]{3}\d)/(s[aix]\d+)\.wav(\.wav)?")
_SAMPLE = re.compile(r"(?:.*/)?(dr)[1-8]-([fm][a-z]{3}\d)/(s[aix]\d+)\.wav(\.wav)?")


class Sentence(NamedTuple):
    """One recording: who says what, the part of the corpus it is in (``"sample"`` in NLTK's), and its audio file."""

    part: str
    speaker: str
    name: str
    audio: Path

    @property
    def phones(self) -> Path:
        """The file with the phones and their times, beside the audio."""
        stem = self.audio.name.partition(".")[0]
        lower, upper = (self.audio.with_name(f"{stem}{suffix}") for suffix in (".phn", ".PHN"))
        return upper if upper.is_file() else lower


class Split(NamedTuple):
    """The sentences of each set, and which split it is: ``"core test"`` or ``"sample"``."""

    kind: str
    train: list[Sentence]
    val: list[Sentence]
    test: list[Sentence]

    @property
    def description(self) -> str:
        """One line that says what the sets are."""
        sets = ", ".join(
            f"{len(sentences)} {name} sentences ({len({sentence.speaker for sentence in sentences})} speakers)"
            for name, sentences in zip(("training", "validation", "test"), self[1:], strict=True)
        )
        remarks = {
            "core test": "full corpus, standard core test",
            "sample": "NLTK's sample split by speaker, NOT THE PAPER'S CORPUS",
        }
        return f"TIMIT, {remarks[self.kind]}: {sets}"


def find_sentences(folder: Path) -> list[Sentence]:
    """Find the sentences below a folder, in either of two layouts, in upper or lower case, at any depth."""
    # The full corpus (LDC93S1) has ``TRAIN/DR1/FCJF0/SI1027.WAV``, and ``TEST`` likewise; NLTK's sample has
    # ``dr1-fvmh0/si1466.wav``. ``SI1027.WAV.wav``, a converted copy that some have beside the original, counts only
    # where that is missing. The two SA sentences, which every speaker reads, are left out: TIMIT's documentation says
    # that they "should not be used for training or test purposes" (testset.doc).
    if not is_folder(folder):
        raise DataError(f"There is no folder {str(folder)!r}. {_WHAT_TO_GIVE}")
    recordings: dict[tuple[str, str, str], list[Path]] = {}  # by part, speaker and sentence
    for path in (Path(parent, name) for parent, _, files in os.walk(folder) for name in files):
        text = path.relative_to(folder).as_posix().lower()
        match = _FULL.fullmatch(text) or _SAMPLE.fullmatch(text)
        if match is not None and not match[3].startswith("sa"):
            part = "sample" if match[1] == "dr" else match[1]
            recordings.setdefault((part, match[2], match[3]), []).append(path)
    parts = {part for part, _, _ in recordings}
    if not recordings:
        raise DataError(f"There is no TIMIT sentence below {str(folder)!r}. {_WHAT_TO_GIVE}")
    if "sample" in parts and len(parts) > 1:
        raise DataError(
            f"{str(folder)!r} holds both the full corpus and NLTK's sample. Give corpus= the folder of one of them."
        )
    sentences = []
    for key, paths in sorted(recordings.items()):
        originals = [path for path in paths if not path.name.lower().endswith(".wav.wav")] or paths
        if len(originals) > 1:
            raise DataError(
                f"{str(folder)!r} holds a sentence twice: {', '.join(sorted(map(str, originals)))}. Give corpus= the "
                "folder of one copy."
            )
        sentences.append(Sentence(*key, originals[0]))
    return sentences


def split_sentences(sentences: Iterable[Sentence]) -> Split:
    """Split sentences by their speakers."""
    # The full corpus as in the GELU paper (Hendrycks and Gimpel 2016, arXiv 1606.08415, section 3.4, and their code):
    # the 3,696 sentences of the 462 training speakers; the 192 of the 24 core test speakers; and as validation the
    # other 1,152 of the 168 test speakers. (The paper speaks of 680 speakers; TIMIT has 630.) The sample as in
    # `_SAMPLE_SPEAKERS`: 96, 16 and 16 sentences.
    sets: dict[str, list[Sentence]] = {"train": [], "val": [], "test": []}
    kind = "core test"
    for sentence in sentences:
        if sentence.part == "sample":
            kind = "sample"
            is_val, is_test = (sentence.speaker in _SAMPLE_SPEAKERS[part] for part in ("val", "test"))
        else:
            is_test = sentence.speaker in CORE_TEST_SPEAKERS
            is_val = sentence.part == "test" and not is_test
        sets["val" if is_val else "test" if is_test else "train"].append(sentence)
    counts = tuple(map(len, sets.values()))
    if not all(counts) or (kind == "core test" and counts != FULL_SENTENCES):
        raise DataError(
            f"This TIMIT is not complete: {counts} training, validation and core test sentences, expected "
            f"{FULL_SENTENCES}, or of NLTK's sample (96, 16, 16). Copy the corpus again."
        )
    return Split(kind, *sets.values())
