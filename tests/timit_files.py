"""A small corpus in either of TIMIT's layouts, and how to write a sentence of it."""

import wave
from pathlib import Path

import numpy as np

SPEAKERS = {"train": ("FAAA0", "MBBB0"), "test": ("MCCC0", "FELC0")}  # the last is of the core test set
SAMPLE_SPEAKERS = ("dr1-fvmh0", "dr1-mcpm0", "dr3-falk0", "dr5-ftlg0")  # training, training, validation and test
PHONES = "0 {third} h#\n{third} {half} q\n{half} {end} iy\n"


def noise(samples: int, seed: int = 0) -> np.ndarray:
    """Return int16 noise whose spectrum falls, as speech's does."""
    white = np.random.default_rng(seed).normal(0, 300, samples)
    return np.cumsum(white - white.mean()).clip(-32000, 32000).astype("<i2")


def write_riff(path: Path, samples: np.ndarray, rate: int = 16_000, channels: int = 1) -> None:
    """Write 16-bit samples with the standard library."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.astype("<i2").tobytes())


def write_sphere(path: Path, samples: np.ndarray, coding: str = "", rate: int = 16_000) -> None:
    """Write 16-bit samples as TIMIT's discs have them: a header of 1,024 bytes, then the least byte first."""
    fields = [
        "database_id -s5 TIMIT",
        "channel_count -i 1",
        f"sample_count -i {len(samples)}",
        f"sample_rate -i {rate}",
        "sample_n_bytes -i 2",
        "sample_byte_format -s2 01",
        "sample_sig_bits -i 16",
    ]
    if coding:
        fields.append(f"sample_coding -s{len(coding)} {coding}")
    header = "\n".join(["NIST_1A", "   1024", *fields, "end_head", ""]).encode()
    path.write_bytes(header.ljust(1024) + samples.astype("<i2").tobytes())


def write_sentence(audio: Path, samples: int, seed: int = 0, sphere: bool = True) -> None:
    """Write a recording and its phones: a third silence, then ``q`` up to the middle, then ``iy``."""
    audio.parent.mkdir(parents=True, exist_ok=True)
    (write_sphere if sphere else write_riff)(audio, noise(samples, seed))
    phones = PHONES.format(third=samples // 3, half=samples // 2, end=samples)
    audio.with_suffix(".PHN" if audio.suffix.isupper() else ".phn").write_text(phones)


def write_corpus(root: Path) -> Path:
    """Write ROOT/timit in the full corpus's layout: four speakers with three sentences each, one of them SA1."""
    for part, speakers in SPEAKERS.items():
        for speaker in speakers:
            for number, name in enumerate(("SA1", "SI7", "SX8")):
                folder = root / "timit" / part.upper() / "DR1" / speaker
                write_sentence(folder / f"{name}.WAV", 2000 + 480 * number, seed=number)
    return root


def write_sample(root: Path) -> Path:
    """Write ROOT/timit in the layout of NLTK's sample: four speakers with three sentences each, one of them sa1."""
    for speaker in SAMPLE_SPEAKERS:
        for number, name in enumerate(("sa1", "si7", "sx8")):
            audio = root / "timit" / speaker / f"{name}.wav"
            write_sentence(audio, 2000 + 480 * number, seed=number, sphere=number == 2)
    return root
