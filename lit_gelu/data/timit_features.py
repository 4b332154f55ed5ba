"""TIMIT's frames, 26 features each, computed once and kept: mel cepstrum, log energy, and their first derivatives.

The formulas are those of HTK (Young et al., "The HTK Book", version 3.4, chapter 5), with the settings that work on
TIMIT commonly has: magnitude spectrum, filters that are triangles on the mel scale, log energy of the raw frame. The
GELU paper says "12 MFCC, energy and derivatives" and its extractor was never published, so the settings are an
assumption. `librosa.filters.mel` has triangles on the scale of hertz, and is not used for that reason.
"""

import hashlib
import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.nn import functional

from lit_gelu.data.npz import Arrays, kept_arrays
from lit_gelu.data.timit_corpus import SAMPLE_RATE, Sentence, phones_at, read_audio, read_phones
from lit_gelu.errors import DataError
from lit_gelu.files import is_file

FRAME = 400  # samples; 25 ms
HOP = 160  # samples from the start of a frame to that of the next; 10 ms
PRE_EMPHASIS = 0.97  # share of the sample before that is taken away from each sample
FFT_SIZE = 512  # the smallest power of two that holds a frame
FILTERS = 26  # triangular, between 0 Hz and half the sample rate
CEPSTRA = 12  # coefficients, from the first on (not the zeroth)
LIFTER = 22  # length of the sine that the coefficients are weighted by
DELTA_WINDOW = 2  # frames on each side of the one whose derivative is taken
SIZE = 2 * (CEPSTRA + 1)  # features of a frame


def frame_features(signal: Tensor) -> Tensor:
    """Return the cepstral coefficients, log energy and derivatives of each frame of a signal, ``[frames, 26]``."""
    if len(signal) < FRAME:
        return torch.zeros(0, SIZE, dtype=torch.float64)
    frames = signal.double().unfold(0, FRAME, HOP)
    # The log energy before pre-emphasis and window, as with ``RAWENERGY = T`` and ``ENORMALISE = F`` (section 5.8).
    log_energy = frames.square().sum(dim=1, keepdim=True).clamp(min=1).log()
    static = torch.cat([mel_cepstra(frames), log_energy], dim=1)
    return torch.cat([static, derivatives(static)], dim=1)


def frame_centres(frames: int) -> Tensor:
    """Return where the centre of each frame is, in samples from the start."""
    return HOP * torch.arange(frames) + FRAME // 2


def mel_cepstra(frames: Tensor) -> Tensor:
    """Return the liftered mel-frequency cepstral coefficients of frames (HTK Book, sections 5.2, 5.4, 5.6)."""
    # Pre-emphasis within the frame, s'_n = s_n - .97 s_(n-1), s'_1 = .03 s_1; the Hamming window
    # .54 - .46 cos(2 pi (n - 1) / (N - 1)); the magnitude of the Fourier transform; the sums m_j over the filters, at
    # least 1; and c_i = (1 + L/2 sin(pi i / L)) sqrt(2 / 26) sum_j log m_j cos(pi i (j - .5) / 26), i from 1, L = 22.
    before = functional.pad(frames[:, :-1], (1, 0))
    before[:, 0] = frames[:, 0]
    window = torch.hamming_window(FRAME, periodic=False, dtype=torch.float64)
    spectrum = torch.fft.rfft((frames - PRE_EMPHASIS * before) * window, n=FFT_SIZE).abs()
    bands = (spectrum @ mel_filters().T).clamp(min=1).log()
    order = torch.arange(1, CEPSTRA + 1, dtype=torch.float64)
    band = torch.arange(FILTERS, dtype=torch.float64) + 0.5
    transform = math.sqrt(2 / FILTERS) * torch.cos(torch.outer(band, order) * (math.pi / FILTERS))
    lifter = 1 + LIFTER / 2 * torch.sin(math.pi * order / LIFTER)
    cepstra: Tensor = bands @ transform * lifter
    return cepstra


def mel_filters() -> Tensor:
    """Return the filters, ``[26, 257]``: triangles in mel = 1127 ln(1 + f / 700), between their neighbours' centres."""
    # The centres are equally spaced in mel between 0 Hz and half the sample rate, where the outermost triangles end.
    frequencies = torch.linspace(0, SAMPLE_RATE / 2, FFT_SIZE // 2 + 1, dtype=torch.float64)
    mels = 1127 * torch.log1p(frequencies / 700)
    spacing = mels[-1] / (FILTERS + 1)
    centres = spacing * torch.arange(1, FILTERS + 1, dtype=torch.float64)
    return (1 - (mels - centres[:, None]).abs() / spacing).clamp(min=0)


def derivatives(values: Tensor) -> Tensor:
    """Return the slope of each column over the neighbouring frames, by regression (HTK Book, section 5.9)."""
    # d_t = sum_k k (v_(t+k) - v_(t-k)) / (2 sum_k k^2), k = 1 and 2. Beyond the first and last frame, those again.
    frames = torch.arange(len(values))

    def shifted(steps: int) -> Tensor:
        return values[(frames + steps).clamp(0, len(values) - 1)]

    steps = range(1, DELTA_WINDOW + 1)
    slopes = [step * (shifted(step) - shifted(-step)) for step in steps]
    return torch.stack(slopes).sum(dim=0) / (2 * sum(step * step for step in steps))


VERSION = 2  # of the computation: raised when it gives other numbers
_LATEST_END = 1600  # 0.1 s beyond the audio, where no frame's centre is
_PROGRESS_FROM = 500  # sentences: fewer take a second or two


class Frames(NamedTuple):
    """Frames of sentences, one sentence after the other."""

    features: Tensor  # [frames, 26], float32
    phones: Tensor  # positions in `timit_corpus.PHONES`, [frames], int64
    lengths: Tensor  # frames of each sentence, [sentences], int64


def cached_frames(sentences: list[Sentence], corpus: Path, folder: Path | None = None) -> Frames:
    """Return the frames of sentences: read from their cache, or computed and written there."""
    # The cache's name is made of each source's path, size and time of change: an edited corpus gets a file of its own.
    sources = []
    for path in (file for sentence in sentences for file in (sentence.audio, sentence.phones)):
        facts = path.stat() if is_file(path) else None  # missing: reported when it is read
        sources.append((path.relative_to(corpus).as_posix(), facts and (facts.st_size, facts.st_mtime_ns)))
    key = hashlib.sha256(json.dumps([VERSION, sources]).encode()).hexdigest()[:16]

    def compute() -> Arrays:
        features, phones, lengths = (tensor.numpy() for tensor in compute_frames(sentences))
        return {"features": features, "phones": phones.astype(np.uint8), "lengths": lengths}  # 61 phones fit in a byte

    arrays = kept_arrays(f"timit-features-{key}", folder, Frames._fields, compute)
    features, phones, lengths = (torch.from_numpy(arrays[name]) for name in Frames._fields)
    return Frames(features, phones.long(), lengths)


def compute_frames(sentences: list[Sentence]) -> Frames:
    """Read sentences and compute their features; a progress bar shows where that takes long."""
    features, phones = [], []
    disable, console = len(sentences) < _PROGRESS_FROM, Console(stderr=True)
    for sentence in track(sentences, "TIMIT: features", transient=True, disable=disable, console=console):
        audio, segments = read_audio(sentence.audio), read_phones(sentence.phones)
        end = int(segments.ends[-1])
        if len(audio) < FRAME or end > len(audio) + _LATEST_END:
            raise DataError(
                f"{str(sentence.audio)!r} has {len(audio)} samples, and its phones go on until sample {end}. One of "
                "the two files is truncated or of another sentence: copy both again."
            )
        features.append(frame_features(audio).float())
        phones.append(phones_at(segments, frame_centres(len(features[-1]))))
    return Frames(torch.cat(features), torch.cat(phones), torch.tensor([len(part) for part in phones]))
