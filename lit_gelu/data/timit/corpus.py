"""Finding TIMIT's sentences in a folder, and who belongs to training, validation and test."""

import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from lit_gelu.data.errors import CorruptDataError, DataNotFoundError
from lit_gelu.files import is_folder

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
        raise DataNotFoundError(f"There is no folder {str(folder)!r}. {_WHAT_TO_GIVE}")
    names = (Path(parent, name) for parent, _, files in os.walk(folder) for name in files)
    found: dict[tuple[str, str, str], list[Path]] = {}
    for path in names:
        match = _match(path.relative_to(folder))
        if match:
            found.setdefault(match, []).append(path)
    parts = {part for part, _, _ in found}
    if not found:
        raise DataNotFoundError(f"There is no TIMIT sentence below {str(folder)!r}. {_WHAT_TO_GIVE}")
    if "sample" in parts and len(parts) > 1:
        raise CorruptDataError(
            f"{str(folder)!r} holds both the full corpus and NLTK's sample. Give corpus= the folder of one of them."
        )
    return [Sentence(*key, _only(found[key], folder)) for key in sorted(found)]


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
        raise DataNotFoundError(
            f"This TIMIT is not complete: {counts} training, validation and core test sentences found, expected "
            f"{FULL_SENTENCES}. Copy the corpus again, or train on what there is with allow_incomplete=True "
            "(--data.allow_incomplete true), which is not the paper's protocol."
        )
    if not all(counts):
        speakers = Counter(sentence.speaker for part in sets.values() for sentence in part)
        raise DataNotFoundError(
            f"A set would be empty: {counts} training, validation and test sentences of the speakers "
            f"{', '.join(sorted(speakers))}. Copy the corpus again; each set needs one of its speakers at least."
        )
    return Split(kind, *sets.values())


_WHAT_TO_GIVE = (
    "Give root=, or set the environment variable LIT_GELU_DATA, to the folder that holds timit: either the full corpus "
    "(LDC93S1, timit/TRAIN/DR1/FCJF0/SX37.WAV, from the Linguistic Data Consortium) or NLTK's sample of it "
    "(timit/dr1-fvmh0/sx26.wav, nltk.download('timit')). corpus= names another folder."
)


def _match(path: Path) -> tuple[str, str, str] | None:
    """Return part, speaker and name of the sentence that a path names, ``None`` if none, or one of the two SA."""
    text = path.as_posix().lower()
    match = _FULL.fullmatch(text) or _SAMPLE.fullmatch(text)
    if match is None or match[3].startswith("sa"):
        return None
    return "sample" if match[1] == "dr" else match[1], match[2], match[3]


def _only(paths: list[Path], folder: Path) -> Path:
    """Return the audio file of a sentence."""
    originals = [path for path in paths if not path.name.lower().endswith(".wav.wav")] or paths
    if len(originals) > 1:
        first, second, *_ = sorted(str(path.relative_to(folder)) for path in originals)
        raise CorruptDataError(
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
