"""TIMITData on small corpora made here, and on the sample where LIT_GELU_DATA names it."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from data_checkpoints import loaded_from_checkpoint
from timit_files import noise, write_corpus
from torch.utils.data import RandomSampler, SequentialSampler

from lit_gelu.data import TIMITData
from lit_gelu.data.timit.corpus import CLASSES, PHONES, find_sentences
from lit_gelu.data.timit.features import compute_frames, frame_features
from lit_gelu.errors import ArgumentError, DataError

SILENCE = {"pcl", "tcl", "kcl", "bcl", "dcl", "gcl", "h#", "pau", "epi", "q"}

soundfile = pytest.importorskip("soundfile", reason="machines with a GPU may be without the extra timit")


@pytest.fixture
def root(tmp_path):
    return write_corpus(tmp_path)


def small(root, **options):
    return TIMITData(root, **{"batch_size": 2, "cache": root / "kept", "allow_incomplete": True, **options})


def test_sets_and_batches_of_the_full_layout(root):
    data = small(root)
    data.prepare_data()
    data.setup()
    assert [len(part) for part in (data.train_set, data.val_set, data.test_set)] == [4, 2, 2]
    assert data.split == "incomplete"
    assert len(data.train_dataloader()) == 2
    assert isinstance(data.train_dataloader().sampler, RandomSampler)
    assert isinstance(data.val_dataloader().sampler, SequentialSampler)
    windows, labels = next(iter(data.test_dataloader()))
    assert (windows.shape, windows.dtype, labels.shape, labels.dtype) == ((31, 286), torch.float32, (31,), torch.int64)
    assert torch.equal(windows, next(iter(data.predict_dataloader()))[0])
    names = [CLASSES[label] for label in labels]
    assert names == ["sil"] * 7 + ["iy"] * 7 + ["sil"] * 8 + ["iy"] * 9  # q counts as silence


def test_windows_are_normalised_features_of_eleven_frames(root):
    """Mean and deviation over the training sentences, computed in float64 from the recordings themselves."""
    data = small(root)
    data.setup()
    si7, sx8 = (frame_features(torch.from_numpy(noise(samples, seed))) for samples, seed in ((2480, 1), (2960, 2)))
    training = torch.cat([si7, sx8] * 2)
    mean, deviation = training.mean(dim=0), training.std(dim=0, unbiased=False)
    frames = (sx8 - mean) / deviation  # of the second test sentence
    windows = data.test_set[1][0]
    for t in range(len(frames)):
        expected = torch.cat([frames[min(max(t + step, 0), len(frames) - 1)] for step in range(-5, 6)])
        torch.testing.assert_close(windows[t], expected.float(), rtol=1e-4, atol=1e-4)
    raw = sx8.float()[torch.arange(-5, 6).add(8).clamp(0, 16)].flatten()[None]
    torch.testing.assert_close(data.normalisation()(raw), windows[8:9])


def test_the_remainder_is_dropped_in_training_alone(root):
    data = small(root, batch_size=3)
    data.setup()
    assert len(data.train_dataloader()) == 1
    assert len(data.val_dataloader()) == 1


def test_glottal_stops_can_be_ignored(root):
    data, kept = small(root, glottal_stop="ignore"), small(root)
    data.setup("test")
    kept.setup("test")
    windows, labels = data.test_set.inputs, data.test_set.labels
    is_q = compute_frames(find_sentences(root / "timit")[2:4]).phones == PHONES.index("q")  # any speaker's
    assert int(is_q.sum()) == 6
    assert torch.equal(windows, kept.test_set.inputs[~is_q])
    assert torch.equal(labels, kept.test_set.labels[~is_q])


def test_the_two_oversights_of_the_papers_code_as_options(root):
    plain, twice, padded = small(root), small(root, centre_twice=True), small(root, padded_statistics=True)
    for data in (plain, twice, padded):
        data.setup()
    assert torch.equal(twice.train_set.features, plain.train_set.features)
    module = plain.normalisation()
    shift = module.mean / module.deviation
    torch.testing.assert_close(twice.val_set.features, plain.val_set.features - shift, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(twice.test_set.features, plain.test_set.features - shift, rtol=1e-4, atol=1e-4)
    share = 62 / (4 * 17)  # training frames of the padded array's: sentences of 14 and 17 frames, twice
    torch.testing.assert_close(padded.normalisation().mean, share * module.mean)


def test_a_module_is_loaded_from_its_own_checkpoint(root, monkeypatch):
    (root / "timit").rename(root / "elsewhere")
    data = small(root, corpus="elsewhere", centre_twice=True, glottal_stop="ignore")
    monkeypatch.setenv("LIT_GELU_DATA", str(root))
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / "cache"))
    loaded = loaded_from_checkpoint(data, root / "run.ckpt")
    loaded.setup()
    assert dict(loaded.hparams) == dict(data.hparams)
    assert loaded.folder == data.folder
    assert torch.equal(loaded.val_set.features, data.val_set.features)


def test_refused_arguments(root):
    with pytest.raises(ArgumentError):
        TIMITData(glottal_stop="t")
    with pytest.raises(ArgumentError):
        TIMITData(glottal_stop=["sil"])
    with pytest.raises(ArgumentError):
        TIMITData(centre_twice="no")
    with pytest.raises(ArgumentError):
        TIMITData(batch_size=0)
    with pytest.raises(ArgumentError):
        small(root, batch_size=64).setup("fit")
    with pytest.raises(DataError):
        small(root).normalisation()
    with pytest.raises(DataError):
        small(root, allow_incomplete=False).prepare_data()


@pytest.mark.realdata
def test_the_real_sample(tmp_path):
    """160 utterances less 32 SA; shares of the phones counted outside, from the .phn files' durations alone."""
    data = TIMITData(cache=tmp_path)
    if not data.folder.is_dir():
        pytest.skip("LIT_GELU_DATA has no folder timit")
    assert len(list(data.folder.glob("dr*/*.wav"))) == 160
    data.prepare_data()
    data.setup()
    assert data.split == "sample"
    assert [len(part) for part in (data.train_set, data.val_set, data.test_set)] == [96, 16, 16]
    samples, silence = 0, 0
    for path in data.folder.glob("dr*/*.phn"):
        if not path.name.startswith("sa"):
            for begin, end, phone in map(str.split, path.read_text().splitlines()):
                samples += int(end) - int(begin)
                silence += (int(end) - int(begin)) * (phone in SILENCE)
    labels = torch.cat([part.labels for part in (data.train_set, data.val_set, data.test_set)])
    assert len(labels) == pytest.approx(samples / 160, rel=0.01)
    assert (labels == CLASSES.index("sil")).float().mean().item() == pytest.approx(silence / samples, abs=0.005)
    assert len(labels.unique()) == 39
    windows = data.train_set.inputs
    assert windows.mean().item() == pytest.approx(0, abs=0.01)
    assert windows.std().item() == pytest.approx(1, abs=0.01)


@pytest.mark.realdata
def test_the_one_sphere_file_of_the_real_sample_is_read_as_its_bytes():
    path = Path(os.environ["LIT_GELU_DATA"]) / "timit" / "dr1-fvmh0" / "si836.wav"
    if not path.is_file():
        pytest.skip("LIT_GELU_DATA has no folder timit")
    content = path.read_bytes()
    assert content.startswith(b"NIST_1A")
    samples, _ = soundfile.read(path, dtype="int16")
    np.testing.assert_array_equal(samples, np.frombuffer(content[1024:], dtype="<i2"))
