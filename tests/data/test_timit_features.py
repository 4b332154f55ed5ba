"""TIMIT's features against the formulas of the HTK Book in numpy and scipy, and the file that keeps them."""

import math
import os

import numpy as np
import pytest
import torch
from scipy.fft import dct
from scipy.signal import get_window, lfilter
from timit_files import noise, write_corpus, write_sentence

from lit_gelu.data import timit_features as features
from lit_gelu.data.timit_corpus import PHONES, find_sentences
from lit_gelu.data.timit_features import cached_frames, compute_frames, frame_centres, frame_features
from lit_gelu.errors import DataError


def htk_filter_sums(magnitudes, rate, filters):
    """HTK's way: each frequency gives a share to the filter on its left and the rest to that on its right."""
    size = 2 * (len(magnitudes) - 1)
    mel = [1127 * math.log(1 + number * rate / size / 700) for number in range(len(magnitudes))]
    centres = [mel[-1] * number / (filters + 1) for number in range(filters + 2)]
    sums = np.zeros(filters + 2)
    for position, magnitude in zip(mel[1:-1], magnitudes[1:-1], strict=True):
        left = max(number for number in range(filters + 2) if centres[number] < position)
        share = (centres[left + 1] - position) / (centres[left + 1] - centres[left])
        sums[left] += share * magnitude
        sums[left + 1] += (1 - share) * magnitude
    return sums[1:-1]


def htk_features(signal, rate=16000, frame=400, hop=160, emphasis=0.97, filters=26, cepstra=12, lifter=22, window=2):
    static = []
    for start in range(0, len(signal) - frame + 1, hop):
        raw = signal[start : start + frame].astype(np.float64)
        emphasised = lfilter([1, -emphasis], [1], raw, zi=[-emphasis * raw[0]])[0]
        size = 1 << (frame - 1).bit_length()
        magnitudes = np.abs(np.fft.rfft(emphasised * get_window("hamming", frame, fftbins=False), size))
        logs = np.log(np.maximum(htk_filter_sums(magnitudes, rate, filters), 1))
        numbers = np.arange(1, cepstra + 1)
        coefficients = dct(logs, type=2, norm="ortho")[1 : cepstra + 1]
        coefficients = coefficients * (1 + lifter / 2 * np.sin(np.pi * numbers / lifter))
        energy = math.log(max(float((raw**2).sum()), 1))
        static.append([*coefficients, energy])
    static = np.array(static)
    padded = np.pad(static, ((window, window), (0, 0)), mode="edge")
    slopes = np.zeros_like(static)
    for t in range(len(static)):
        for step in range(1, window + 1):
            slopes[t] += step * (padded[t + window + step] - padded[t + window - step])
    return np.hstack([static, slopes / (2 * sum(step**2 for step in range(1, window + 1)))])


SIGNALS = {
    "noise": noise(8000),
    "tone": np.round(20000 * np.sin(np.arange(5000) * 2 * np.pi * 440 / 16000)).astype(np.int16),
    "silence, then a click": np.r_[np.zeros(3000), 30000, np.zeros(999)].astype(np.int16),
    "one frame": noise(400, seed=3),
    "loudest": np.tile(np.array([32767, -32768], dtype=np.int16), 1000),
}


@pytest.mark.parametrize("name", SIGNALS)
def test_features_against_htk(name):
    ours = frame_features(torch.from_numpy(SIGNALS[name]))
    assert (ours.dtype, ours.shape[1]) == (torch.float64, 26)
    np.testing.assert_allclose(ours.numpy(), htk_features(SIGNALS[name]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("samples", "frames"), [(399, 0), (400, 1), (559, 1), (560, 2), (16000, 98)])
def test_the_number_of_frames(samples, frames):
    """Only whole frames count, as with HTK."""
    assert frame_features(torch.zeros(samples, dtype=torch.int16)).shape == (frames, 26)
    assert frame_centres(frames).tolist() == [160 * number + 200 for number in range(frames)]


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path) / "timit"


def equal(first, second):
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(first, second, strict=True))


def test_frames_and_their_phones(corpus):
    """2,480 samples are 14 frames; centre 200 + 160 t is silence up to sample 826, then q up to 1240, then iy."""
    frames = compute_frames(find_sentences(corpus)[:1])
    assert frames.features.shape == (14, 26)
    assert frames.features.dtype == torch.float32
    assert [PHONES[number] for number in frames.phones] == ["h#"] * 4 + ["q"] * 3 + ["iy"] * 7
    assert frames.lengths.tolist() == [14]


def test_the_second_time_nothing_is_computed(corpus, tmp_path, monkeypatch):
    sentences = find_sentences(corpus)
    computed = cached_frames(sentences, corpus, tmp_path / "kept")
    assert equal(computed, compute_frames(sentences))
    monkeypatch.setattr(features, "compute_frames", None)
    assert equal(cached_frames(sentences, corpus, tmp_path / "kept"), computed)
    assert [path.suffix for path in (tmp_path / "kept").iterdir()] == [".npz"]


@pytest.mark.parametrize("change", ["audio", "time", "fewer", "version"])
def test_another_source_or_other_settings_have_another_file(corpus, tmp_path, monkeypatch, change):
    sentences = find_sentences(corpus)
    cached_frames(sentences, corpus, tmp_path / "kept")
    if change == "audio":
        write_sentence(sentences[0].audio, 3000, seed=9)
    elif change == "time":
        os.utime(sentences[0].audio, ns=(1, 1))
    elif change == "fewer":
        sentences = sentences[1:]
    else:
        monkeypatch.setattr(features, "VERSION", 99)
    frames = cached_frames(sentences, corpus, tmp_path / "kept")
    assert len(list((tmp_path / "kept").iterdir())) == 2
    assert equal(frames, compute_frames(sentences))


def test_phones_beyond_the_audio(corpus):
    (sentence, *_) = find_sentences(corpus)
    sentence.phones.write_text("0 4080 h#\n")  # 0.1 s longer than the 2,480 samples
    assert len(compute_frames([sentence]).phones) == 14
    sentence.phones.write_text("0 4081 h#\n")
    with pytest.raises(DataError):
        compute_frames([sentence])
