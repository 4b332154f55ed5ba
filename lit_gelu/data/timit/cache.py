"""Features and phones of a corpus: computed once, then read from a file that their settings and their sources name."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from lit_gelu.data.errors import CorruptDataError
from lit_gelu.data.npz import Arrays, kept_arrays
from lit_gelu.data.timit.audio import read_audio
from lit_gelu.data.timit.corpus import Sentence
from lit_gelu.data.timit.features import DEFAULT, frame_centres, frame_features
from lit_gelu.data.timit.phones import PHONES, phones_at, read_phones
from lit_gelu.files import is_file

VERSION = 1  # of the computation: raised when the same settings give other numbers
_LATEST_END = 1600  # 0.1 s beyond the audio, where no frame's centre is
_PROGRESS_FROM = 500  # sentences: fewer take a second or two


class Frames(NamedTuple):
    """Frames of sentences, one sentence after the other."""

    features: Tensor  # [frames, 26], float32
    phones: Tensor  # positions in `phones.PHONES`, [frames], int64
    lengths: Tensor  # frames of each sentence, [sentences], int64


def cached_frames(sentences: list[Sentence], corpus: Path, folder: Path | None = None) -> Frames:
    """Return the frames of sentences: read from their cache, or computed and written there."""
    # Its name is made of the settings of the features and of each source's path, size and time of change: an edited
    # corpus gets a file of its own.
    name = f"timit-features-{_key(sentences, corpus)}"
    arrays = kept_arrays(name, folder, lambda found: _is_whole(found, len(sentences)), lambda: _computed(sentences))
    features, phones, lengths = (torch.from_numpy(arrays[name]) for name in Frames._fields)
    return Frames(features, phones.long(), lengths)


def compute_frames(sentences: Iterable[Sentence]) -> Frames:
    """Read sentences and compute their features; a progress bar shows where that takes long."""
    sentences = list(sentences)
    description = f"TIMIT: features of {len(sentences)} sentences"
    disable, console = len(sentences) < _PROGRESS_FROM, Console(stderr=True)
    shown = track(sentences, description, transient=True, disable=disable, console=console)
    features, phones = zip(*map(_frames_of, shown), strict=True)
    lengths = torch.tensor([len(part) for part in phones])
    return Frames(torch.cat(features), torch.cat(phones), lengths)


def _frames_of(sentence: Sentence) -> tuple[Tensor, Tensor]:
    """Return the features and the phones of a sentence's frames."""
    audio, segments = read_audio(sentence.audio), read_phones(sentence.phones)
    if len(audio) < DEFAULT.frame:
        raise CorruptDataError(
            f"{str(sentence.audio)!r} holds {len(audio)} samples, less than a frame ({DEFAULT.frame}). Copy it again."
        )
    end = int(segments.ends[-1])
    if end > len(audio) + _LATEST_END:
        raise CorruptDataError(
            f"The phones in {str(sentence.phones)!r} go on until sample {end}, but {sentence.audio.name} has "
            f"{len(audio)} samples. One of the two is truncated or of another sentence: copy both again."
        )
    features = frame_features(audio).float()
    return features, phones_at(segments, frame_centres(len(features)))


def _computed(sentences: list[Sentence]) -> Arrays:
    """Return the frames of sentences as they are kept: 61 phones fit in a byte."""
    features, phones, lengths = (tensor.numpy() for tensor in compute_frames(sentences))
    return {"features": features, "phones": phones.astype(np.uint8), "lengths": lengths}


def _is_whole(arrays: Arrays, sentences: int) -> bool:
    """Return whether arrays of the cache are those of so many sentences."""
    if set(arrays) != set(Frames._fields):
        return False
    features, phones, lengths = (arrays[name] for name in Frames._fields)
    if [array.dtype.name for array in (features, phones, lengths)] != ["float32", "uint8", "int64"]:
        return False
    if lengths.shape != (sentences,) or min(lengths) < 1 or sum(lengths.tolist()) != phones.size:
        return False
    is_phone = phones.size and phones.max() < len(PHONES)
    return bool(is_phone) and phones.ndim == 1 and features.shape == (len(phones), DEFAULT.size)


def _key(sentences: list[Sentence], corpus: Path) -> str:
    """Return 16 hexadecimal digits that name the settings and the sources."""
    sources = []
    for sentence in sentences:
        for path in (sentence.audio, sentence.phones):
            facts = path.stat() if is_file(path) else None  # missing: reported when it is read
            size_and_time = (facts.st_size, facts.st_mtime_ns) if facts else None
            sources.append((path.relative_to(corpus).as_posix(), size_and_time))
    text = json.dumps([VERSION, asdict(DEFAULT), sources])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
