"""TIMITData on small corpora made here, and on the sample where LIT_GELU_DATA names it."""

import pytest
import torch
from data_checkpoints import loaded_from_checkpoint
from timit_files import noise, write_sample

from lit_gelu.data import TIMITData
from lit_gelu.data.timit_corpus import CLASSES
from lit_gelu.data.timit_features import frame_features
from lit_gelu.errors import ArgumentError, DataError

SILENCE = {"pcl", "tcl", "kcl", "bcl", "dcl", "gcl", "h#", "pau", "epi", "q"}

soundfile = pytest.importorskip("soundfile", reason="machines with a GPU may be without the extra timit")


@pytest.fixture
def root(tmp_path):
    return write_sample(tmp_path)


def small(root, **options):
    return TIMITData(root, **{"batch_size": 2, "cache": root / "kept", **options})


def test_sets_and_batches_of_the_sample(root):
    data = small(root)
    data.prepare_data()
    data.setup()
    assert [len(part) for part in (data.train_set, data.val_set, data.test_set)] == [4, 2, 2]
    assert data.split == "sample"
    assert len(data.train_dataloader()) == 2
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
    windows = next(iter(data.test_dataloader()))[0][14:]  # of a batch, behind those of the first one
    for t in range(len(frames)):
        expected = torch.cat([frames[min(max(t + step, 0), len(frames) - 1)] for step in range(-5, 6)])
        torch.testing.assert_close(windows[t], expected.float(), rtol=1e-4, atol=1e-4)
    raw = sx8.float()[torch.arange(-5, 6).add(8).clamp(0, 16)].flatten()[None]
    torch.testing.assert_close(data.normalisation()(raw), windows[8:9])


def test_a_module_is_loaded_from_its_own_checkpoint(root, monkeypatch):
    (root / "timit").rename(root / "elsewhere")
    data = small(root, corpus="elsewhere")
    monkeypatch.setenv("LIT_GELU_DATA", str(root))
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / "cache"))
    loaded = loaded_from_checkpoint(data, root / "run.ckpt")
    loaded.setup()
    assert dict(loaded.hparams) == dict(data.hparams)
    assert loaded.folder == data.folder
    assert torch.equal(loaded.val_set.inputs, data.val_set.inputs)


def test_refused_arguments(root):
    with pytest.raises(ArgumentError):
        TIMITData(batch_size=0)
    with pytest.raises(ArgumentError):
        small(root, batch_size=64).setup("fit")
    with pytest.raises(DataError):
        small(root).normalisation()


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
