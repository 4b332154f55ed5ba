"""TIMIT's 26 features a frame: mel-frequency cepstral coefficients, log energy, and their first derivatives.

The formulas are those of HTK (Young et al., "The HTK Book", version 3.4, chapter 5), with the settings that work on
TIMIT commonly has: magnitude spectrum, filters that are triangles on the mel scale, log energy of the raw frame. The
GELU paper says "12 MFCC, energy and derivatives" and its extractor was never published, so the settings are an
assumption. `librosa.filters.mel` has triangles on the scale of hertz, and is not used for that reason.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


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
