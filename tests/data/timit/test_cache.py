"""The features' file: read instead of computed, one for each state of the sources, whole or not there."""

import os

import numpy as np
import pytest
import torch
from timit_files import write_corpus, write_sentence

from lit_gelu.data.timit import features
from lit_gelu.data.timit.corpus import PHONES, find_sentences
from lit_gelu.data.timit.features import cached_frames, compute_frames
from lit_gelu.errors import DataError


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


@pytest.mark.parametrize("change", ["audio", "phones", "time", "fewer", "settings", "version"])
def test_another_source_or_other_settings_have_another_file(corpus, tmp_path, monkeypatch, change):
    sentences = find_sentences(corpus)
    cached_frames(sentences, corpus, tmp_path / "kept")
    if change == "audio":
        write_sentence(sentences[0].audio, 3000, seed=9)
    elif change == "phones":
        sentences[0].phones.write_text("0 2480 aa\n")
    elif change == "time":
        os.utime(sentences[0].audio, ns=(1, 1))
    elif change == "fewer":
        sentences = sentences[1:]
    elif change == "settings":
        monkeypatch.setattr(features, "DEFAULT", features.DEFAULT.__class__(pre_emphasis=0.9))
    else:
        monkeypatch.setattr(features, "VERSION", 2)
    frames = cached_frames(sentences, corpus, tmp_path / "kept")
    assert len(list((tmp_path / "kept").iterdir())) == 2
    assert equal(frames, compute_frames(sentences))


SPOILT = {
    "other shapes": lambda arrays: arrays | {"features": arrays["features"][1:]},
    "doubles": lambda arrays: arrays | {"features": arrays["features"].astype(float)},
    "another phone": lambda arrays: arrays | {"phones": arrays["phones"] + np.uint8(61)},
    "a scalar": lambda arrays: arrays | {"phones": np.uint8(0)},
    "another sentence": lambda arrays: arrays | {"lengths": np.append(arrays["lengths"], 1)},
    "negative lengths": lambda arrays: arrays | {"lengths": -arrays["lengths"]},
    "another array": lambda arrays: arrays | {"others": np.zeros(1)},
}


def test_phones_beyond_the_audio(corpus):
    (sentence, *_) = find_sentences(corpus)
    sentence.phones.write_text("0 4080 h#\n")  # 0.1 s longer than the 2,480 samples
    assert len(compute_frames([sentence]).phones) == 14
    sentence.phones.write_text("0 4081 h#\n")
    with pytest.raises(DataError):
        compute_frames([sentence])
