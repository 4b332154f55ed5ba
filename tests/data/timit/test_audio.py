"""Reading RIFF and SPHERE by content, and what is refused."""

import numpy as np
import pytest
import torch
from timit_files import noise, write_riff, write_sphere

from lit_gelu.data.timit.corpus import read_audio
from lit_gelu.errors import DataError

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
    with pytest.raises(DataError):
        read_audio(tmp_path / "a.wav")


@pytest.mark.parametrize("write", [write_riff, write_sphere])
def test_a_truncated_file(tmp_path, write):
    path = tmp_path / "a.wav"
    write(path, noise(1000))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError):
        read_audio(path)


@pytest.mark.parametrize("arguments", [{"rate": 8000}, {"channels": 2}])
def test_another_rate_or_number_of_channels(tmp_path, arguments):
    write_riff(tmp_path / "a.wav", noise(1000), **arguments)
    with pytest.raises(DataError):
        read_audio(tmp_path / "a.wav")


@pytest.mark.parametrize(
    "content", [b"", b"RIFF", b"no audio" * 300, b"NIST_1A\n   1024\n", b"NIST_1A\n   1024\n" * 90]
)
def test_what_is_no_audio(tmp_path, content):
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(DataError):
        read_audio(tmp_path / "a.wav")
