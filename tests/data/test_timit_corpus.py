"""TIMIT's files: who is in which set, recordings, phones and their folding."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from timit_files import noise, write_corpus, write_riff, write_sample, write_sphere

from lit_gelu.data.timit_corpus import (
    CLASS_OF,
    CLASSES,
    CORE_TEST_SPEAKERS,
    PHONES,
    Segments,
    Sentence,
    class_numbers,
    find_sentences,
    phones_at,
    read_audio,
    read_phones,
    split_sentences,
)
from lit_gelu.data.timit_features import frame_centres
from lit_gelu.errors import DataError

# Men and women of each dialect region: all speakers (TIMIT's readme.doc, table 1), and those of the complete test set
# (testset.doc, table 2); the three core test speakers of each region (table 1).
ALL_SPEAKERS = [(31, 18), (71, 31), (79, 23), (69, 31), (62, 36), (30, 16), (74, 26), (22, 11)]
TEST_SPEAKERS = [(7, 4), (18, 8), (23, 3), (16, 16), (17, 11), (8, 3), (15, 8), (8, 3)]
CORE = [
    ("MDAB0", "MWBT0", "FELC0"),
    ("MTAS1", "MWEW0", "FPAS0"),
    ("MJMP0", "MLNT0", "FPKT0"),
    ("MLLL0", "MTLS0", "FJLM0"),
    ("MBPM0", "MKLT0", "FNLP0"),
    ("MCMJ0", "MJDH0", "FMGD0"),
    ("MGRT0", "MNJM0", "FDHC0"),
    ("MJLN0", "MPAM0", "FMLD0"),
]
SENTENCES = ("SA1", "SA2", "SX1", "SX2", "SX3", "SX4", "SX5", "SI6", "SI7", "SI8")


def write_full_tree(folder: Path) -> None:
    """Write empty files where the full corpus has its 6,300; only the core test speakers have their names."""
    triples = itertools.product("ABCDEFGHIJKLMNOPQRSTUVWXYZ", repeat=3)
    for region, (everyone, test, core) in enumerate(zip(ALL_SPEAKERS, TEST_SPEAKERS, CORE, strict=True), start=1):
        for sex, all_of_sex, test_of_sex, core_of_sex in zip("MF", everyone, test, (core[:2], core[2:]), strict=True):
            others = [f"{sex}{''.join(next(triples))}9" for _ in range(all_of_sex - len(core_of_sex))]
            for number, name in enumerate([*core_of_sex, *others]):
                speaker = folder / ("TEST" if number < test_of_sex else "TRAIN") / f"DR{region}" / name
                speaker.mkdir(parents=True)
                for sentence in SENTENCES:
                    (speaker / f"{sentence}.WAV").touch()


def test_the_full_corpus_has_3696_and_1152_and_192_sentences(tmp_path):
    write_full_tree(tmp_path / "TIMIT")
    assert len(list(tmp_path.rglob("*.WAV"))) == 6300
    split = split_sentences(find_sentences(tmp_path))
    assert [len(part) for part in split[1:]] == [3696, 1152, 192]
    assert [len({sentence.speaker for sentence in part}) for part in split[1:]] == [462, 144, 24]
    assert {sentence.speaker for sentence in split.test} == CORE_TEST_SPEAKERS
    assert not {sentence.name for part in split[1:] for sentence in part} & {"sa1", "sa2"}
    assert split.kind == "core test"
    assert "full corpus, standard core test: 3696 training sentences (462 speakers)" in split.description


def test_a_corpus_that_lacks_a_sentence(tmp_path):
    write_full_tree(tmp_path)
    next(tmp_path.rglob("TRAIN/*/*/SX1.WAV")).unlink()
    with pytest.raises(DataError):
        split_sentences(find_sentences(tmp_path))


def test_layout_of_the_full_corpus(tmp_path):
    folder = write_corpus(tmp_path) / "timit"
    sentences = find_sentences(folder)
    speakers = [("test", "felc0"), ("test", "mccc0"), ("train", "faaa0"), ("train", "mbbb0")]
    assert [sentence[:3] for sentence in sentences] == [(*one, name) for one in speakers for name in ("si7", "sx8")]
    assert sentences[4].audio == folder / "TRAIN" / "DR1" / "FAAA0" / "SI7.WAV"
    assert sentences[4].phones == folder / "TRAIN" / "DR1" / "FAAA0" / "SI7.PHN"


def test_layout_of_the_sample(tmp_path):
    split = split_sentences(find_sentences(write_sample(tmp_path) / "timit"))
    speakers = [[sentence.speaker for sentence in part] for part in split[1:]]
    assert speakers == [["fvmh0"] * 2 + ["mcpm0"] * 2, ["falk0"] * 2, ["ftlg0"] * 2]
    assert split.kind == "sample"
    assert "NOT THE PAPER'S CORPUS: 4 training sentences (2 speakers)" in split.description


def test_no_speaker_is_in_two_sets_of_the_sample():
    names = "fvmh0 mcpm0 faem0 marc0 falk0 madc0 falr0 maeb0 ftlg0 mbgt0 fapb0 mbma1 fblv0 madd0 fbcg1 mbcg0"
    sentences = [Sentence("sample", name, f"sx{n}", Path(name)) for name in names.split() for n in range(8)]
    split = split_sentences(sentences)
    assert [len(part) for part in split[1:]] == [96, 16, 16]
    speakers = [{sentence.speaker for sentence in part} for part in split[1:]]
    assert [sorted(name[0] for name in part) for part in speakers] == [["f"] * 6 + ["m"] * 6, ["f", "m"], ["f", "m"]]
    assert len(set.union(*speakers)) == 16


# Lee and Hon 1989, table 3, and the closures, pauses and silences as one class.
FOLDS = {
    "aa": {"ao"},
    "ah": {"ax", "ax-h"},
    "er": {"axr"},
    "hh": {"hv"},
    "ih": {"ix"},
    "l": {"el"},
    "m": {"em"},
    "n": {"en", "nx"},
    "ng": {"eng"},
    "sh": {"zh"},
    "uw": {"ux"},
    "sil": {"pcl", "tcl", "kcl", "bcl", "dcl", "gcl", "h#", "pau", "epi", "q"},
}


def test_61_phones_become_39():
    assert (len(PHONES), len(set(PHONES)), len(CLASSES), len(set(CLASSES))) == (61, 61, 39, 39)
    for phone in PHONES:
        expected = next((name for name, folded in FOLDS.items() if phone in folded), phone)
        assert CLASS_OF[phone] == expected
        assert CLASSES[class_numbers()[PHONES.index(phone)]] == expected


def test_the_phone_at_a_frame_centre():
    """Centres are at 200, 360, 520, ...: a phone holds its begin, not its end."""
    segments = Segments(torch.tensor([200, 361, 520, 681]), torch.tensor([3, 5, 7, 9]))
    assert phones_at(segments, frame_centres(5)).tolist() == [5, 5, 9, 9, 9]


def test_phones_of_a_file_that_does_not_begin_at_zero_or_has_gaps(tmp_path):
    path = tmp_path / "sx1.phn"
    path.write_text("300 400 h#\n\n500 600 iy\n600 600 k\n600 700 h#\n")
    segments = read_phones(path)
    names = [PHONES[number] for number in phones_at(segments, torch.tensor([0, 399, 450, 599, 600, 800]))]
    assert names == ["h#", "h#", "iy", "iy", "h#", "h#"]


@pytest.mark.parametrize(
    "content",
    [
        "0 100 h#\n100 200 ee\n",
        "0 100 h#\n100 200\n",
        "0 1.5 h#\n",
        "200 100 h#\n",
        f"0 {10**29} h#\n",
        f"{'9' * 5000} {'9' * 5000} h#\n",
        "0 100 h#\n0 50 iy\n",
        "",
    ],
)
def test_spoilt_files(tmp_path, content):
    (tmp_path / "sx1.phn").write_text(content)
    with pytest.raises(DataError):
        read_phones(tmp_path / "sx1.phn")


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


NO_AUDIO = {
    **{f"coded as {coding}": {"coding": coding} for coding in ("pcm,embedded-shorten-v2.00", "ulaw")},
    **{f"{name} of {value}": {name: value} for name, value in (("rate", 8000), ("channels", 2))},
    **{f"{content[:8]!r}": content for content in (b"", b"RIFF", b"no audio" * 300, b"NIST_1A\n   1024\n" * 90)},
}


@pytest.mark.parametrize("audio", NO_AUDIO.values(), ids=NO_AUDIO)
def test_audio_that_is_not_as_timits(tmp_path, audio):
    path = tmp_path / "a.wav"
    if isinstance(audio, bytes):
        path.write_bytes(audio)
    else:
        (write_sphere if "coding" in audio else write_riff)(path, noise(1000), **audio)
    with pytest.raises(DataError):
        read_audio(path)
