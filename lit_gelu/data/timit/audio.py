"""Reading TIMIT's audio, NIST SPHERE or RIFF: files are known by their content, since both are named ``.wav``."""

from pathlib import Path

import torch
from torch import Tensor

from lit_gelu.data.errors import CorruptDataError
from lit_gelu.extras import need

SAMPLE_RATE = 16_000
_SPHERE_HEADER = 1024


def read_audio(path: Path) -> Tensor:
    """Read a recording of one channel with 16 bits a sample at 16 kHz."""
    soundfile = need("soundfile", extra="speech", what="Reading TIMIT's audio")
    _check_header(path)
    try:
        with soundfile.SoundFile(path) as file:
            found = (file.samplerate, file.channels, file.subtype)
            if found != (SAMPLE_RATE, 1, "PCM_16"):
                raise CorruptDataError(
                    f"{str(path)!r} holds {found[1]} channels of {found[2]} at {found[0]} Hz; accepted: 1 channel of "
                    f"PCM_16 at {SAMPLE_RATE} Hz, as TIMIT has. Use the original files, or convert: sox IN -c 1 -b 16 "
                    f"-r {SAMPLE_RATE} OUT.wav."
                )
            return torch.from_numpy(file.read(dtype="int16"))
    except soundfile.LibsndfileError as error:
        raise CorruptDataError(
            f"{str(path)!r} is no audio file that can be read ({error.error_string}) Copy it again from the corpus."
        ) from error


def _check_header(path: Path) -> None:
    """Refuse a compressed or a truncated file, of which libsndfile would say nothing clear, or nothing at all."""
    with path.open("rb") as file:
        start = file.read(_SPHERE_HEADER)
    size = Path(path).stat().st_size
    if start[:4] == b"RIFF" and len(start) >= 8:
        expected = int.from_bytes(start[4:8], "little") + 8
    elif start[:7] == b"NIST_1A":
        expected = _sphere_size(start, path)
    else:
        return
    if size < expected:
        raise CorruptDataError(
            f"{str(path)!r} is truncated: it holds {size} bytes, its header says {expected}. Copy it again from the "
            "corpus."
        )


def _sphere_size(header: bytes, path: Path) -> int:
    """Return how many bytes a SPHERE file must have."""
    lines = (line.split(maxsplit=2) for line in header.decode("latin-1").splitlines()[1:])
    fields = {line[0]: line[2].strip() for line in lines if len(line) == 3}
    coding = fields.get("sample_coding", "pcm")
    if coding != "pcm":
        raise CorruptDataError(
            f"{str(path)!r} is a compressed SPHERE file (sample_coding {coding}); accepted: pcm. Unpack it with the "
            "tools of the LDC or of NIST: sph2pipe -f wav IN OUT, or w_decode -o pcm IN OUT."
        )
    numbers = [fields.get(name, default) for name, default in (("sample_count", ""), ("sample_n_bytes", "2"))]
    if not all(number.isdecimal() for number in numbers):
        raise CorruptDataError(
            f"{str(path)!r} has a SPHERE header without a valid sample_count and sample_n_bytes. Copy it again from "
            "the corpus."
        )
    return _SPHERE_HEADER + int(numbers[0]) * int(numbers[1])
