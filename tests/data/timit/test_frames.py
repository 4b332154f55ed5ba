"""Windows inside the sentence, batches of whole sentences, frames without a label."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from lit_gelu.data.in_memory import whole_batch
from lit_gelu.data.timit.frames import SentenceFrames, fit_normalisation

LENGTHS = [1, 4, 13, 7]


def made(ignored=()):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(sum(LENGTHS), 3, generator=generator)
    labels = torch.randint(39, (sum(LENGTHS),), generator=generator)
    labels[list(ignored)] = -1
    return features, labels, SentenceFrames(features, labels, torch.tensor(LENGTHS))


def windows_one_by_one(features, labels, sentence):
    start = sum(LENGTHS[:sentence])
    frames = features[start : start + LENGTHS[sentence]]
    rows, kept = [], []
    for t in range(len(frames)):
        if labels[start + t] >= 0:
            rows.append(torch.cat([frames[min(max(t + k, 0), len(frames) - 1)] for k in range(-5, 6)]))
            kept.append(int(labels[start + t]))
    return rows, kept


@pytest.mark.parametrize("ignored", [(), (0,), (2, 3, 5, 24), range(5, 18)])
def test_windows_against_one_by_one(ignored):
    features, labels, data = made(ignored)
    order = [2, 0, 3]
    rows, kept = [], []
    for sentence in order:
        more_rows, more_kept = windows_one_by_one(features, labels, sentence)
        rows += more_rows
        kept += more_kept
    windows, batch_labels = data.__getitems__(order)
    assert torch.equal(windows, torch.stack(rows))
    assert batch_labels.tolist() == kept
    assert len(data) == 4
    assert torch.equal(data[2][0], data.__getitems__([2])[0])


def test_a_loader_takes_whole_sentences_and_each_once():
    _, labels, data = made()
    batches = list(DataLoader(data, batch_size=2, shuffle=True, collate_fn=whole_batch))
    assert sum(len(batch[1]) for batch in batches) == sum(LENGTHS)
    assert sorted(torch.cat([batch[1] for batch in batches]).tolist()) == sorted(labels.tolist())


# Mean and deviation over the training frames, of the padded array as an option.


TRAINED_LENGTHS = [3, 7, 5]


def test_statistics_of_the_valid_frames():
    features = np.random.default_rng(0).normal(5, 3, (15, 26))
    ours = fit_normalisation(torch.from_numpy(features), torch.tensor(TRAINED_LENGTHS))
    np.testing.assert_allclose(ours.mean, features.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(ours.deviation, features.std(axis=0), rtol=1e-6)


def test_statistics_of_the_padded_array():
    """The paper's code: mean and deviation over axes 0 and 1 of [sentences, longest, 26], padded on the left."""
    features = np.random.default_rng(0).normal(5, 3, (15, 26))
    padded = np.zeros((3, 7, 26))
    for number, part in enumerate(np.split(features, np.cumsum(TRAINED_LENGTHS)[:-1])):
        padded[number, 7 - len(part) :] = part
    ours = fit_normalisation(torch.from_numpy(features), torch.tensor(TRAINED_LENGTHS), padded=True)
    np.testing.assert_allclose(ours.mean, padded.mean(axis=(0, 1)), rtol=1e-6)
    np.testing.assert_allclose(ours.deviation, padded.std(axis=(0, 1)), rtol=1e-6)
