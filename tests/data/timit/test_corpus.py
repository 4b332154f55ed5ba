"""Finding sentences in both layouts, and who is in which set."""

import itertools
import os
from pathlib import Path

import pytest
from timit_files import write_corpus, write_sample

from lit_gelu.data.timit.corpus import CORE_TEST_SPEAKERS, Sentence, find_sentences, split_sentences
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


def test_the_core_test_speakers_are_those_of_the_documentation():
    assert {name.lower() for names in CORE for name in names} == CORE_TEST_SPEAKERS
    assert sorted(name[0] for name in CORE_TEST_SPEAKERS) == ["f"] * 8 + ["m"] * 16


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


def test_one_missing_sentence_makes_it_incomplete(tmp_path):
    write_full_tree(tmp_path)
    next(tmp_path.rglob("TRAIN/*/*/SX1.WAV")).unlink()
    sentences = find_sentences(tmp_path)
    with pytest.raises(DataError):
        split_sentences(sentences)
    split = split_sentences(sentences, allow_incomplete=True)
    assert (split.kind, len(split.train)) == ("incomplete", 3695)
    assert "INCOMPLETE" in split.description


def test_layout_of_the_full_corpus(tmp_path):
    folder = write_corpus(tmp_path) / "timit"
    split = split_sentences(find_sentences(folder), allow_incomplete=True)
    named = [[(sentence.speaker, sentence.name) for sentence in part] for part in split[1:]]
    assert named == [
        [("faaa0", "si7"), ("faaa0", "sx8"), ("mbbb0", "si7"), ("mbbb0", "sx8")],
        [("mccc0", "si7"), ("mccc0", "sx8")],
        [("felc0", "si7"), ("felc0", "sx8")],
    ]
    assert split.train[0].audio == folder / "TRAIN" / "DR1" / "FAAA0" / "SI7.WAV"
    assert split.train[0].phones == folder / "TRAIN" / "DR1" / "FAAA0" / "SI7.PHN"


def test_layout_of_the_sample(tmp_path):
    split = split_sentences(find_sentences(write_sample(tmp_path) / "timit"))
    assert [[sentence.speaker for sentence in part] for part in split[1:]] == [["fvmh0"], ["falk0"], ["ftlg0"]]
    assert split.kind == "sample"
    assert "NOT THE PAPER'S CORPUS: 1 training sentences (1 speakers)" in split.description


def test_no_speaker_is_in_two_sets_of_the_sample():
    names = "fvmh0 mcpm0 faem0 marc0 falk0 madc0 falr0 maeb0 ftlg0 mbgt0 fapb0 mbma1 fblv0 madd0 fbcg1 mbcg0"
    sentences = [Sentence("sample", name, f"sx{n}", Path(name)) for name in names.split() for n in range(8)]
    split = split_sentences(sentences)
    assert [len(part) for part in split[1:]] == [96, 16, 16]
    speakers = [{sentence.speaker for sentence in part} for part in split[1:]]
    assert [sorted(name[0] for name in part) for part in speakers] == [["f"] * 6 + ["m"] * 6, ["f", "m"], ["f", "m"]]
    assert len(set.union(*speakers)) == 16


@pytest.mark.realdata
def test_the_core_test_speakers_against_kaldis_list():
    path = Path(os.environ["LIT_GELU_DATA"]) / "timit" / "facts" / "test_spk.list"
    if not path.is_file():
        pytest.skip("LIT_GELU_DATA has no timit/facts")
    assert set(path.read_text().split()) == CORE_TEST_SPEAKERS
