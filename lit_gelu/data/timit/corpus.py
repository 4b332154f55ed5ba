"""TIMIT's sentences in a folder: who belongs to training, validation and test, their audio and their phones."""

import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lit_gelu.errors import DataError, shown
from lit_gelu.extras import need
from lit_gelu.files import is_file, is_folder, require_no_pipe

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
        raise DataError(
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
        raise DataError(f"{str(path)!r} holds no phone. Copy the file again from the corpus.")
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
        raise DataError(
            f"{place}: {shown(line)} given, expected 'begin end phone' in samples, not before {before}. Copy the "
            "file again from the corpus."
        )
    phone = fields[2]
    if phone not in CLASS_OF:
        raise DataError(
            f"{place}: the phone {shown(phone)} is not one of TIMIT's 61: {' '.join(PHONES)}. Mend the line, or copy "
            "the file again from the corpus."
        )
    return int(fields[1]), PHONES.index(phone)


SAMPLE_RATE = 16_000
_SPHERE_HEADER = 1024


def read_audio(path: Path) -> Tensor:
    """Read a recording of one channel with 16 bits a sample at 16 kHz."""
    soundfile = need("soundfile", extra="speech", what="Reading TIMIT's audio")
    require_no_pipe(path)
    _check_header(path)
    try:
        with soundfile.SoundFile(path) as file:
            audio_format = (file.samplerate, file.channels, file.subtype)
            if audio_format != (SAMPLE_RATE, 1, "PCM_16"):
                raise DataError(
                    f"{str(path)!r} holds {file.channels} channels of {file.subtype} at {file.samplerate} Hz; "
                    f"accepted: 1 channel of PCM_16 at {SAMPLE_RATE} Hz, as TIMIT has. Use the original files, or "
                    f"convert: sox IN -c 1 -b 16 -r {SAMPLE_RATE} OUT.wav."
                )
            return torch.from_numpy(file.read(dtype="int16"))
    except soundfile.LibsndfileError as error:
        raise DataError(
            f"{str(path)!r} is no audio file that can be read ({error.error_string}) Copy it again from the corpus."
        ) from error


def _check_header(path: Path) -> None:
    """Refuse a compressed or a truncated file, of which libsndfile would say nothing clear, or nothing at all."""
    with path.open("rb") as file:
        start = file.read(_SPHERE_HEADER)
    size = Path(path).stat().st_size
    if start[:4] == b"RIFF" and len(start) >= 8:
        expected = int.from_bytes(start[4:8], "little") + 8
    elif start[:7] == b"NIST_1A":
        expected = _sphere_size(start, path)
    else:
        return
    if size < expected:
        raise DataError(
            f"{str(path)!r} is truncated: it holds {size} bytes, its header says {expected}. Copy it again from the "
            "corpus."
        )


def _sphere_size(header: bytes, path: Path) -> int:
    """Return how many bytes a SPHERE file must have."""
    lines = (line.split(maxsplit=2) for line in header.decode("latin-1").splitlines()[1:])
    fields = {line[0]: line[2].strip() for line in lines if len(line) == 3}
    coding = fields.get("sample_coding", "pcm")
    if coding != "pcm":
        raise DataError(
            f"{str(path)!r} is a compressed SPHERE file (sample_coding {coding}); accepted: pcm. Unpack it with the "
            "tools of the LDC or of NIST: sph2pipe -f wav IN OUT, or w_decode -o pcm IN OUT."
        )
    numbers = [fields.get(name, default) for name, default in (("sample_count", ""), ("sample_n_bytes", "2"))]
    if not all(number.isdecimal() for number in numbers):
        raise DataError(
            f"{str(path)!r} has a SPHERE header without a valid sample_count and sample_n_bytes. Copy it again from "
            "the corpus."
        )
    return _SPHERE_HEADER + int(numbers[0]) * int(numbers[1])


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
SAMPLE_VALIDATION_SPEAKERS = frozenset({"falk0", "mbma1"})
SAMPLE_TEST_SPEAKERS = frozenset({"ftlg0", "madd0"})
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
    """The sentences of each set, and which split it is: ``"core test"``, ``"sample"`` or ``"incomplete"``."""

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
            "incomplete": "INCOMPLETE corpus, not the paper's",
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
    names = (Path(parent, name) for parent, _, files in os.walk(folder) for name in files)
    recordings: dict[tuple[str, str, str], list[Path]] = {}  # by part, speaker and sentence
    for path in names:
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
    return [Sentence(*key, _only(recordings[key], folder)) for key in sorted(recordings)]


def split_sentences(sentences: Iterable[Sentence], allow_incomplete: bool = False) -> Split:
    """Split sentences by their speakers."""
    # The full corpus as in the GELU paper (Hendrycks and Gimpel 2016, arXiv 1606.08415, section 3.4, and their code):
    # the 3,696 sentences of the 462 training speakers; the 192 of the 24 core test speakers; and as validation the
    # other 1,152 of the 168 test speakers. (The paper speaks of 680 speakers; TIMIT has 630 (D7).) The sample as in
    # `SAMPLE_VALIDATION_SPEAKERS` and `SAMPLE_TEST_SPEAKERS`: 96, 16 and 16 sentences.
    sets: dict[str, list[Sentence]] = {"train": [], "val": [], "test": []}
    for sentence in sentences:
        sets[_set_of(sentence)].append(sentence)
    counts = tuple(map(len, sets.values()))
    is_sample = any(sentence.part == "sample" for part in sets.values() for sentence in part)
    kind = "sample" if is_sample else "core test" if counts == FULL_SENTENCES else "incomplete"
    if kind == "incomplete" and not allow_incomplete:
        raise DataError(
            f"This TIMIT is not complete: {counts} training, validation and core test sentences found, expected "
            f"{FULL_SENTENCES}. Copy the corpus again, or train on what there is with allow_incomplete=True "
            "(--data.allow_incomplete true), which is not the paper's protocol."
        )
    if not all(counts):
        speakers = Counter(sentence.speaker for part in sets.values() for sentence in part)
        raise DataError(
            f"A set would be empty: {counts} training, validation and test sentences of the speakers "
            f"{', '.join(sorted(speakers))}. Copy the corpus again; each set needs one of its speakers at least."
        )
    return Split(kind, *sets.values())


_WHAT_TO_GIVE = (
    "Give root=, or set the environment variable LIT_GELU_DATA, to the folder that holds timit: either the full corpus "
    "(LDC93S1, timit/TRAIN/DR1/FCJF0/SX37.WAV, from the Linguistic Data Consortium) or NLTK's sample of it "
    "(timit/dr1-fvmh0/sx26.wav, nltk.download('timit')). corpus= names another folder."
)


def _only(paths: list[Path], folder: Path) -> Path:
    """Return the audio file of a sentence."""
    originals = [path for path in paths if not path.name.lower().endswith(".wav.wav")] or paths
    if len(originals) > 1:
        first, second, *_ = sorted(str(path.relative_to(folder)) for path in originals)
        raise DataError(
            f"{str(folder)!r} holds a sentence twice, {first!r} and {second!r}. Give corpus= the folder of one copy."
        )
    return originals[0]


def _set_of(sentence: Sentence) -> str:
    """Return the set that a sentence belongs to."""
    validation, test = SAMPLE_VALIDATION_SPEAKERS, SAMPLE_TEST_SPEAKERS
    if sentence.part == "test":
        return "test" if sentence.speaker in CORE_TEST_SPEAKERS else "val"
    if sentence.part == "sample" and sentence.speaker in validation | test:
        return "val" if sentence.speaker in validation else "test"
    return "train"
