"""Reading RIFF and SPHERE by content, and what is refused."""

import sys

import numpy as np
import pytest
import torch
from timit_files import noise, write_riff, write_sphere

from lit_gelu.data import CorruptDataError, MissingExtraError
from lit_gelu.data.timit.audio import read_audio

soundfile = pytest.importorskip("soundfile", reason="machines with a GPU may be without the extra timit")


@pytest.mark.parametrize("write", [write_riff, write_sphere])
@pytest.mark.parametrize("name", ["SX1.WAV", "sx1.wav", "sx1.sph", "sx1"])
def test_both_formats_under_any_name(tmp_path, write, name):
    samples = noise(1234)
    samples[:2] = -32768, 32767
    write(tmp_path / name, samples)
    read = read_audio(tmp_path / name)
    assert read.dtype == torch.int16
    np.testing.assert_array_equal(read.numpy(), samples)


@pytest.mark.parametrize("coding", ["pcm,embedded-shorten-v2.00", "ulaw", "pcm,embedded-wavpack"])
def test_a_compressed_sphere_file(tmp_path, coding):
    write_sphere(tmp_path / "a.wav", noise(1000), coding=coding)
    with pytest.raises(CorruptDataError, match=rf"compressed SPHERE file \(sample_coding {coding}\).*sph2pipe -f wav"):
        read_audio(tmp_path / "a.wav")


def test_plain_coding_that_is_said(tmp_path):
    write_sphere(tmp_path / "a.wav", noise(1000), coding="pcm")
    assert len(read_audio(tmp_path / "a.wav")) == 1000


@pytest.mark.parametrize(("write", "header"), [(write_riff, 44), (write_sphere, 1024)])
def test_a_truncated_file(tmp_path, write, header):
    path = tmp_path / "a.wav"
    write(path, noise(1000))
    path.write_bytes(path.read_bytes()[:-100])
    size = header + 2000
    with pytest.raises(CorruptDataError, match=f"is truncated: it holds {size - 100} bytes, its header says {size}"):
        read_audio(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rate": 8000}, r"1 channels of PCM_16 at 8000 Hz; accepted: 1 channel of PCM_16 at 16000 Hz.*sox"),
        ({"channels": 2}, "2 channels of PCM_16 at 16000 Hz"),
    ],
)
def test_another_rate_or_number_of_channels(tmp_path, arguments, message):
    write_riff(tmp_path / "a.wav", noise(1000), **arguments)
    with pytest.raises(CorruptDataError, match=message):
        read_audio(tmp_path / "a.wav")


def test_another_rate_in_sphere(tmp_path):
    write_sphere(tmp_path / "a.wav", noise(1000), rate=8000)
    with pytest.raises(CorruptDataError, match="at 8000 Hz"):
        read_audio(tmp_path / "a.wav")


def test_other_samples(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.zeros(1000), 16000, subtype="FLOAT")
    with pytest.raises(CorruptDataError, match="1 channels of FLOAT"):
        read_audio(tmp_path / "a.wav")


@pytest.mark.parametrize(
    "content", [b"", b"RIFF", b"no audio" * 300, b"NIST_1A\n   1024\n", b"NIST_1A\n   1024\n" * 90]
)
def test_what_is_no_audio(tmp_path, content):
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(CorruptDataError, match=r"a\.wav.* again from"):
        read_audio(tmp_path / "a.wav")


def test_without_soundfile(tmp_path, monkeypatch):
    write_riff(tmp_path / "a.wav", noise(1000))
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'lit-gelu\[speech\]'"):
        read_audio(tmp_path / "a.wav")
