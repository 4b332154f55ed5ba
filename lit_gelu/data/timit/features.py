"""TIMIT's frames, 26 features each, computed once and kept: mel cepstrum, log energy, and their first derivatives.

The formulas are those of HTK (Young et al., "The HTK Book", version 3.4, chapter 5), with the settings that work on
TIMIT commonly has: magnitude spectrum, filters that are triangles on the mel scale, log energy of the raw frame. The
GELU paper says "12 MFCC, energy and derivatives" and its extractor was never published, so the settings are an
assumption. `librosa.filters.mel` has triangles on the scale of hertz, and is not used for that reason.
"""

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.nn import functional

from lit_gelu.data.npz import Arrays, kept_arrays
from lit_gelu.data.timit.corpus import PHONES, Sentence, phones_at, read_audio, read_phones
from lit_gelu.errors import DataError
from lit_gelu.files import is_file


@dataclass(frozen=True)
class FeatureSettings:
    """What decides the features of a signal; part of the key of their cache."""

    sample_rate: int = 16_000  # samples a second
    frame: int = 400  # samples; 25 ms
    hop: int = 160  # samples from the start of a frame to that of the next; 10 ms
    pre_emphasis: float = 0.97  # share of the sample before that is taken away from each sample
    filters: int = 26  # triangular, between 0 Hz and half the sample rate
    cepstra: int = 12  # coefficients, from the first on (not the zeroth)
    lifter: int = 22  # length of the sine that the coefficients are weighted by
    delta_window: int = 2  # frames on each side of the one whose derivative is taken

    @property
    def fft_size(self) -> int:
        """The smallest power of two that holds a frame: 512."""
        return int(2 ** math.ceil(math.log2(self.frame)))

    @property
    def size(self) -> int:
        """Features of a frame: 26."""
        return 2 * (self.cepstra + 1)


DEFAULT = FeatureSettings()


def frame_features(signal: Tensor, settings: FeatureSettings = DEFAULT) -> Tensor:
    """Return the cepstral coefficients, log energy and derivatives of each frame of a signal, ``[frames, 26]``."""
    if len(signal) < settings.frame:
        return torch.zeros(0, settings.size, dtype=torch.float64)
    frames = signal.double().unfold(0, settings.frame, settings.hop)
    static = torch.cat([mel_cepstra(frames, settings), log_energy(frames)[:, None]], dim=1)
    return torch.cat([static, derivatives(static, settings.delta_window)], dim=1)


def frame_centres(frames: int, settings: FeatureSettings = DEFAULT) -> Tensor:
    """Return where the centre of each frame is, in samples from the start."""
    return settings.hop * torch.arange(frames) + settings.frame // 2


def mel_cepstra(frames: Tensor, settings: FeatureSettings = DEFAULT) -> Tensor:
    """Return the liftered mel-frequency cepstral coefficients of frames (HTK Book, sections 5.2, 5.4, 5.6)."""
    # Pre-emphasis within the frame, s'_n = s_n - .97 s_(n-1), s'_1 = .03 s_1; the Hamming window
    # .54 - .46 cos(2 pi (n - 1) / (N - 1)); the magnitude of the Fourier transform; the sums m_j over the filters, at
    # least 1; and c_i = (1 + L/2 sin(pi i / L)) sqrt(2 / 26) sum_j log m_j cos(pi i (j - .5) / 26), i from 1, L = 22.
    before = functional.pad(frames[:, :-1], (1, 0))
    before[:, 0] = frames[:, 0]
    window = torch.hamming_window(settings.frame, periodic=False, dtype=torch.float64)
    spectrum = torch.fft.rfft((frames - settings.pre_emphasis * before) * window, n=settings.fft_size).abs()
    bands = (spectrum @ mel_filters(settings).T).clamp(min=1).log()
    order = torch.arange(1, settings.cepstra + 1, dtype=torch.float64)
    band = torch.arange(settings.filters, dtype=torch.float64) + 0.5
    transform = math.sqrt(2 / settings.filters) * torch.cos(torch.outer(band, order) * (math.pi / settings.filters))
    lifter = 1 + settings.lifter / 2 * torch.sin(math.pi * order / settings.lifter)
    cepstra: Tensor = bands @ transform * lifter
    return cepstra


def mel_filters(settings: FeatureSettings = DEFAULT) -> Tensor:
    """Return the filters, ``[26, 257]``: triangles in mel = 1127 ln(1 + f / 700), between their neighbours' centres."""
    # The centres are equally spaced in mel between 0 Hz and half the sample rate, where the outermost triangles end.
    frequencies = torch.linspace(0, settings.sample_rate / 2, settings.fft_size // 2 + 1, dtype=torch.float64)
    mels = 1127 * torch.log1p(frequencies / 700)
    spacing = mels[-1] / (settings.filters + 1)
    centres = spacing * torch.arange(1, settings.filters + 1, dtype=torch.float64)
    return (1 - (mels - centres[:, None]).abs() / spacing).clamp(min=0)


def log_energy(frames: Tensor) -> Tensor:
    """Return the natural logarithm of the sum of squares of each frame, before pre-emphasis and window."""
    # As with HTK's ``RAWENERGY = T`` and ``ENORMALISE = F`` (HTK Book, section 5.8).
    return frames.square().sum(dim=1).clamp(min=1).log()


def derivatives(values: Tensor, window: int) -> Tensor:
    """Return the slope of each column over the neighbouring frames, by regression (HTK Book, section 5.9)."""
    # d_t = sum_k k (v_(t+k) - v_(t-k)) / (2 sum_k k^2), k = 1 to window. Beyond the first and last frame, those again.
    frames = torch.arange(len(values))

    def shifted(steps: int) -> Tensor:
        return values[(frames + steps).clamp(0, len(values) - 1)]

    steps = range(1, window + 1)
    slopes = [step * (shifted(step) - shifted(-step)) for step in steps]
    return torch.stack(slopes).sum(dim=0) / (2 * sum(step * step for step in steps))


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
    arrays = kept_arrays(name, folder, lambda cached: _is_whole(cached, len(sentences)), lambda: _computed(sentences))
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
        raise DataError(
            f"{str(sentence.audio)!r} holds {len(audio)} samples, less than a frame ({DEFAULT.frame}). Copy it again."
        )
    end = int(segments.ends[-1])
    if end > len(audio) + _LATEST_END:
        raise DataError(
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
