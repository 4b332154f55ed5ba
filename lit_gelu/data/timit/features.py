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
    """What decides the features of a signal; part of the key of their cache.

    Args:
        sample_rate: Samples a second.
        frame: Samples in a frame; 25 ms.
        hop: Samples from the start of a frame to that of the next; 10 ms.
        pre_emphasis: Share of the sample before that is taken away from each sample.
        filters: Triangular filters between 0 Hz and half the sample rate.
        cepstra: Cepstral coefficients, from the first on (not the zeroth).
        lifter: Length of the sine that the coefficients are weighted by.
        delta_window: Frames on each side of the one whose derivative is taken.
    """

    sample_rate: int = 16_000
    frame: int = 400
    hop: int = 160
    pre_emphasis: float = 0.97
    filters: int = 26
    cepstra: int = 12
    lifter: int = 22
    delta_window: int = 2

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
    """Return the cepstral coefficients, the log energy and their derivatives for each frame of a signal.

    Args:
        signal: Samples on the scale of 16-bit integers, ``[samples]``, any dtype.
        settings: Lengths and numbers.

    Returns:
        Shape ``[frames, 26]``, ``torch.float64``: 12 coefficients, the log energy, the derivatives of the 13.
        ``frames = 1 + (samples - 400) // 160``, 0 for a shorter signal; frame ``t`` begins at sample ``160 t``.

    Example:
        >>> tone = 1000 * torch.sin(torch.arange(16000) * 2 * torch.pi * 440 / 16000)
        >>> features = frame_features(tone)
        >>> features.shape, round(features[0, 12].item(), 4)  # log of 400 samples of mean square 500,000
        (torch.Size([98, 26]), 19.1138)
    """
    if len(signal) < settings.frame:
        return torch.zeros(0, settings.size, dtype=torch.float64)
    frames = signal.double().unfold(0, settings.frame, settings.hop)
    static = torch.cat([mel_cepstra(frames, settings), log_energy(frames)[:, None]], dim=1)
    return torch.cat([static, derivatives(static, settings.delta_window)], dim=1)


def frame_centres(frames: int, settings: FeatureSettings = DEFAULT) -> Tensor:
    """Return where the centre of each frame is.

    Args:
        frames: Number of frames.
        settings: Lengths and numbers.

    Returns:
        Samples from the start, ``[frames]``, ``torch.int64``: the first sample of the frame's second half.

    Example:
        >>> frame_centres(3)
        tensor([200, 360, 520])
    """
    return settings.hop * torch.arange(frames) + settings.frame // 2


def mel_cepstra(frames: Tensor, settings: FeatureSettings = DEFAULT) -> Tensor:
    r"""Return the liftered mel-frequency cepstral coefficients of frames (HTK Book, sections 5.2, 5.4, 5.6).

    Pre-emphasis within the frame, :math:`s'_n = s_n - 0.97 s_{n-1}` (:math:`s'_1 = 0.03 s_1`); the Hamming window
    :math:`0.54 - 0.46 \cos(2 \pi (n - 1) / (N - 1))`; the magnitude of the discrete Fourier transform; the sums
    :math:`m_j` over the 26 filters, at least 1; and

    .. math:: c_i = \left(1 + \tfrac{L}{2} \sin \tfrac{\pi i}{L}\right) \sqrt{\tfrac{2}{26}}
        \sum_{j=1}^{26} \log m_j \cos\left(\tfrac{\pi i}{26} (j - 0.5)\right), \quad i = 1 \dots 12, \quad L = 22

    Args:
        frames: Shape ``[frames, 400]``, ``torch.float64``, on the scale of 16-bit integers.
        settings: Lengths and numbers.

    Returns:
        Shape ``[frames, 12]``, ``torch.float64``.

    Example:
        >>> mel_cepstra(torch.zeros(1, 400, dtype=torch.float64)).abs().max() < 1e-12  # all logarithms are 0
        tensor(True)
    """
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
    r"""Return the filters: triangles on the mel scale, each from its left neighbour's centre to its right neighbour's.

    .. math:: \operatorname{mel}(f) = 1127 \ln(1 + f / 700)

    The centres are equally spaced in mel between 0 Hz and half the sample rate, where the outermost triangles end.

    Args:
        settings: Lengths and numbers.

    Returns:
        Weights of the frequencies of a discrete Fourier transform, ``[26, 257]``, ``torch.float64``, in [0, 1].

    Example:
        >>> filters = mel_filters()
        >>> filters.shape, filters[9].argmax().item() * 16000 / 512  # the tenth centre, 1051.8 mel, is 1079.9 Hz
        (torch.Size([26, 257]), 1093.75)
    """
    frequencies = torch.linspace(0, settings.sample_rate / 2, settings.fft_size // 2 + 1, dtype=torch.float64)
    mels = 1127 * torch.log1p(frequencies / 700)
    spacing = mels[-1] / (settings.filters + 1)
    centres = spacing * torch.arange(1, settings.filters + 1, dtype=torch.float64)
    return (1 - (mels - centres[:, None]).abs() / spacing).clamp(min=0)


def log_energy(frames: Tensor) -> Tensor:
    """Return the natural logarithm of the sum of squares of each frame, before pre-emphasis and window.

    As with HTK's ``RAWENERGY = T`` and ``ENORMALISE = F`` (HTK Book, section 5.8).

    Args:
        frames: Shape ``[frames, samples]``, on the scale of 16-bit integers.

    Returns:
        Shape ``[frames]``; 0 for digital silence, whose logarithm would be minus infinity.

    Example:
        >>> log_energy(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([3.2189, 0.0000])
    """
    return frames.square().sum(dim=1).clamp(min=1).log()


def derivatives(values: Tensor, window: int) -> Tensor:
    r"""Return the slope of each column over the neighbouring frames, by regression (HTK Book, section 5.9).

    .. math:: d_t = \frac{\sum_{k=1}^{K} k (v_{t+k} - v_{t-k})}{2 \sum_{k=1}^{K} k^2}

    Beyond the first and the last frame, those stand again.

    Args:
        values: Shape ``[frames, columns]``, a floating dtype; at least one frame.
        window: The number of frames :math:`K` on each side.

    Returns:
        Of the shape of ``values``.

    Example:
        >>> derivatives(torch.arange(6.0)[:, None] ** 2, window=2).squeeze(1)
        tensor([0.9000, 2.2000, 4.0000, 6.0000, 5.8000, 4.1000])
    """
    frames = torch.arange(len(values))

    def shifted(steps: int) -> Tensor:
        return values[(frames + steps).clamp(0, len(values) - 1)]

    steps = range(1, window + 1)
    slopes = [step * (shifted(step) - shifted(-step)) for step in steps]
    return torch.stack(slopes).sum(dim=0) / (2 * sum(step * step for step in steps))
