"""`KeyedDropout`: its masks follow seed, site and step, and come again after a checkpoint."""

import copy

import pytest
import torch
from lightning.pytorch import seed_everything
from torch import nn
from torch.utils.checkpoint import checkpoint

from lit_gelu.tasks import MNISTClassifier, TaskArgumentError, TIMITFrameClassifier, TweetTagger
from lit_gelu.tasks.keyed_dropout import KeyedDropout
from lit_gelu.tasks.keyed_noise import Key, dropout_factors


def made(seed=0, p=0.5, site=0):
    """Return a layer as a run with this seed would have it."""
    torch.manual_seed(seed)
    return KeyedDropout(p, site)


def test_masks_are_those_of_the_keys():
    layer, x = made(seed=3, site=5), torch.randn(4, 9)
    for step in range(3):
        assert torch.equal(layer(x), x * dropout_factors((1, 4, 9), [Key(3, 5, step)], [0.5])[0])
    assert layer.step == 3


def test_no_numbers_are_taken_from_torchs_generator():
    layer, before = made(), torch.get_rng_state()
    layer(torch.ones(3))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("p", [0.5, 0.0])
def test_evaluation_and_a_chance_of_nothing_change_and_count_nothing(p):
    layer, x = made(p=p), torch.randn(5)
    assert layer.train(p == 0)(x) is x
    assert layer.step == 0


def test_gradients_have_the_mask():
    layer, x = made(), torch.randn(50, requires_grad=True)
    y = layer(x)
    y.backward(torch.arange(50.0))
    assert torch.equal(x.grad, torch.where(y == 0, 0.0, 2 * torch.arange(50.0)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_have_the_same_masks(dtype):
    x = torch.ones(4, 8)
    y = made()(x.to(dtype))
    assert y.dtype == dtype
    assert torch.equal(y.float(), made()(x))


def test_a_run_goes_on_from_a_checkpoint():
    layer, x = made(seed=2**64 - 1), torch.ones(100)
    layer(x)
    other = made(seed=1)
    other.load_state_dict(copy.deepcopy(layer.state_dict()))
    assert torch.equal(other(x), layer(x))
    assert not torch.equal(layer(x), made(seed=1)(x))


@pytest.mark.parametrize("build", [MNISTClassifier, TweetTagger, TIMITFrameClassifier])
def test_tasks_have_it_by_name(build):
    small = {"width": 8} if build is TIMITFrameClassifier else {}
    seed_everything(9, verbose=False)
    keyed = build(keep=0.8, noise="keys", **small)
    seed_everything(9, verbose=False)
    plain = build(keep=0.8, **small)
    found = [module for module in keyed.modules() if isinstance(module, KeyedDropout)]
    assert [layer.site for layer in found] == list(range(len(keyed.hidden)))
    assert {int(layer.seed) for layer in found} == {9}
    assert all(torch.equal(p, q) for p, q in zip(keyed.parameters(), plain.parameters(), strict=True))
    assert {type(layer.dropout) for layer in plain.hidden} == {nn.Dropout}
    assert not any("dropout" in name for name in plain.state_dict())
    assert keyed.is_noisy
    with pytest.raises(TaskArgumentError, match="'global', 'keys'"):
        build(noise="philox", **small)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_forward_pass_that_is_made_again_is_refused(use_reentrant):
    """Its masks would be those of another step, and the gradient wrong."""
    layer = made()
    x = torch.randn(4, 9, requires_grad=True)
    y = checkpoint(lambda z: layer(z).sin(), x, use_reentrant=use_reentrant)
    with pytest.raises(TaskArgumentError, match=r"activation checkpointing.*noise=\"global\""):
        y.sum().backward()
    layer(x).sum().backward()
