"""noise_robustness against a transcription in float64, what its draws depend on, and what it leaves alone."""

import math

import numpy as np
import pytest
import torch
from small_task import SmallData, quiet_trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lit_gelu.errors import ArgumentError
from lit_gelu.tasks import MNISTClassifier, noise_robustness


class Recorder(nn.Module):
    """Logits are the first three pixels; every batch that it was given is kept."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        assert not self.training
        assert not torch.is_grad_enabled()
        self.seen.append(x.clone())
        return x.flatten(1)[:, :3]


def samples(count=21, size=(1, 2, 4)):
    generator = torch.Generator().manual_seed(5)
    return torch.rand(count, *size, generator=generator), torch.randint(3, (count,), generator=generator)


def small_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(8, 16), nn.GELU(), nn.Dropout(), nn.Linear(16, 3))


def by_hand(net, noisy, labels):
    """Error and log loss in float64, sample by sample, from the definitions."""
    first, second = net[1], net[4]
    (w, b), (v, c) = ([p.detach().numpy().astype(np.float64) for p in layer.parameters()] for layer in (first, second))
    wrong, loss = 0, 0.0
    for row, label in zip(noisy.reshape(len(noisy), -1), labels, strict=True):
        z = w @ row + b
        hidden = np.array([x * (1 + math.erf(x / math.sqrt(2))) / 2 for x in z])
        logits = v @ hidden + c
        wrong += int(np.argmax(logits) != label)
        loss += math.log(sum(math.exp(x) for x in logits)) - logits[label]
    return wrong / len(labels), loss / len(labels)


def test_against_a_transcription_in_float64():
    net, (inputs, labels) = small_net(), samples()
    levels, draws = [0.0, 0.5, 3.0], 3
    curves = noise_robustness(net, (inputs, labels), levels, draws=draws, seed=7)
    recorder = Recorder()
    noise_robustness(recorder, (inputs, labels), levels, draws=draws, seed=7)
    expected = []
    for i, level in enumerate(levels):
        rows = []
        for batch in recorder.seen[i * draws : (i + 1) * draws]:
            noisy = batch.numpy().astype(np.float64)
            assert np.abs(noisy - inputs.numpy()).max() <= level + 1e-6
            rows.append(by_hand(net, noisy, labels.numpy()))
        expected.append(np.array(rows))
    assert curves.levels == tuple(levels)
    assert curves.error == pytest.approx([e[:, 0].mean() for e in expected], abs=1e-12)
    assert curves.loss == pytest.approx([e[:, 1].mean() for e in expected], rel=1e-5)
    assert curves.error_spread == pytest.approx([e[:, 0].std() for e in expected], abs=1e-12)
    assert curves.loss_spread == pytest.approx([e[:, 1].std() for e in expected], rel=1e-3, abs=1e-12)
    assert curves.loss_spread[0] == curves.error_spread[0] == 0
    assert curves.loss_spread[2] > 0
    assert (curves.samples, curves.draws, curves.seed) == (21, draws, 7)


def test_noise_is_uniform_and_independent_between_pixels():
    inputs = torch.full((4000, 1, 2, 2), 0.5)
    recorder = Recorder()
    noise_robustness(recorder, DataLoader(TensorDataset(inputs, torch.zeros(4000).long()), 4000), [2.0])
    noise = (recorder.seen[0] - 0.5).flatten(1).double().numpy()
    assert noise.min() >= -2
    assert noise.max() <= 2
    # Deciles of the uniform distribution; 16,000 values scatter by .5 % of the range, six sigma are 2.4 %.
    deciles = np.quantile(noise, np.linspace(0.1, 0.9, 9))
    assert np.abs(deciles - np.linspace(-1.6, 1.6, 9)).max() < 0.024 * 4
    assert np.abs(np.corrcoef(noise.T) - np.eye(4)).max() < 6 / math.sqrt(4000)


def test_the_draws_depend_on_seed_level_draw_and_place_alone():
    inputs, labels = samples(37)
    first = run(inputs, labels, 37, levels=[0.5, 2.0], draws=2, seed=1)
    for batch_size in (1, 5, 16):
        assert torch.equal(run(inputs, labels, batch_size, levels=[0.5, 2.0], draws=2, seed=1), first)
    torch.manual_seed(99)
    torch.rand(7)
    assert torch.equal(run(inputs, labels, 8, levels=[2.0], draws=2, seed=1)[0], first[1])  # another grid
    assert torch.equal(run(inputs, labels, 8, levels=[2.0], draws=1, seed=1)[0, 0], first[1, 0])  # fewer draws
    others = [first[1, 0], first[1, 1], first[0, 0] * 4, run(inputs, labels, 8, levels=[2.0], draws=1, seed=2)[0, 0]]
    for i, one in enumerate(others):  # no two of them are the same draw, scaled or not
        assert all(abs(correlation(one, other)) < 0.4 for other in others[:i])


def run(inputs, labels, batch_size, *, levels, draws, seed):
    """The noise as [levels, draws, samples, pixels], gathered over batches."""
    recorder = Recorder()
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=batch_size)
    noise_robustness(recorder, loader, levels, draws=draws, seed=seed)
    calls = len(levels) * draws
    parts = [torch.cat(recorder.seen[i::calls]) for i in range(calls)]
    return (torch.stack(parts) - inputs).reshape(len(levels), draws, len(inputs), -1)


def correlation(a, b):
    return np.corrcoef(a.flatten().numpy(), b.flatten().numpy())[0, 1]


def test_without_noise_it_is_the_ordinary_test_error():
    torch.manual_seed(0)
    model, data = MNISTClassifier(keep=0.5, hidden_layers=2), SmallData()
    (result,) = quiet_trainer().test(model, datamodule=data, verbose=False)
    curves = noise_robustness(model, data, [0.0, 0.0])
    assert curves.error == pytest.approx([result["test_error"]] * 2, rel=1e-6)
    assert curves.loss == pytest.approx([result["test_loss"]] * 2, rel=1e-5)
    assert curves.samples == 21


def test_module_and_random_state_are_left_alone():
    model = nn.Sequential(nn.Flatten(), nn.Dropout().eval(), nn.Linear(8, 3)).train()
    flags = [module.training for module in model.modules()]
    inputs, labels = samples()
    before, state = inputs.clone(), torch.get_rng_state()
    noise_robustness(model, DataLoader(TensorDataset(inputs, labels), batch_size=4, shuffle=True), [0, 1.0])
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == flags
    assert torch.equal(inputs, before)


@pytest.mark.parametrize(
    "options",
    [{"levels": [0, math.nan]}, {"levels": [-0.5]}, {"levels": []}, {"levels": 1.0}, {"draws": 0}, {"seed": -1}],
)
def test_refused_arguments(options):
    with pytest.raises(ArgumentError):
        noise_robustness(small_net(), samples(), **{"levels": [0], **options})


INPUTS, LABELS = samples()


@pytest.mark.parametrize(
    "data",
    [
        INPUTS,
        [],
        (INPUTS, LABELS[:-1]),
        (INPUTS, LABELS.float()),
        (INPUTS.byte(), LABELS),
        DataLoader(INPUTS),
        TensorDataset(INPUTS, LABELS),
        DataLoader(TensorDataset(INPUTS, LABELS), batch_size=None),
        (INPUTS, LABELS + 1),
    ],
)
def test_refused_data(data):
    with pytest.raises(ArgumentError):
        noise_robustness(small_net(), data, [0])
