"""The recorder: what it counts, what it leaves alone."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lit_gelu import activations
from lit_gelu.curvature import activation_statistics
from lit_gelu.curvature.activation.recorder import ActivationRecorder
from lit_gelu.curvature.activation.statistics import SUMS, activation_sums
from lit_gelu.sandbox import side_pass


def recorded(module, *inputs, **options):
    with ActivationRecorder({"site": module}, **options) as recorder:
        recorder.start(seed=options.pop("seed", 0))
        for x in inputs:
            module(x)
        recorder.stop()
        return recorder.statistics()["site"]


@pytest.mark.parametrize("shape", [(64,), (64, 8), (8, 8, 8), (8, 4, 3, 3)])
def test_all_rows_equal_a_direct_computation(shape):
    x = torch.randn(shape)
    assert recorded(nn.GELU(), x, sample_rows=None) == pytest.approx(activation_statistics("gelu", x), rel=1e-12)


def test_in_place_activations_are_seen_before_they_overwrite_their_input():
    x = torch.randn(20, 4)
    expected = activation_statistics("relu", x)
    for sample_rows in (None, 1000):
        assert recorded(nn.ReLU(inplace=True), x.clone(), sample_rows=sample_rows) == pytest.approx(expected, rel=1e-12)


def test_an_input_that_autograd_keeps_is_copied_when_the_forward_pass_is_over():
    module, x = nn.GELU(), torch.randn(6, 4)
    with ActivationRecorder({"site": module}) as recorder:
        recorder.start()
        module(x.clone().requires_grad_())
        recorder.pause()
        torch.testing.assert_close(recorder.sums()[0], activation_sums(module, x))


def test_an_input_that_was_overwritten_after_all_does_not_count_and_the_next_is_copied_at_once():
    module, x = nn.GELU(), torch.randn(6, 4)
    with ActivationRecorder({"site": module}) as recorder:
        recorder.start()
        for elements in (0, x.numel()):
            kept = x.clone().requires_grad_()
            module(kept)
            kept.detach().fill_(7.0)
            assert recorder.sums()[0, SUMS.index("count")] == elements
        torch.testing.assert_close(recorder.sums()[0], activation_sums(module, x))


def test_per_channel_parameters_keep_their_channels_in_a_sample():
    module = nn.PReLU(3)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([0.1, 0.5, -1.0]))
    for shape in [(50, 3), (50, 3, 5), (50, 3, 4, 4)]:
        figures = recorded(module, -torch.ones(shape), sample_rows=10)
        assert figures["mean_squared_derivative"] == pytest.approx((0.01 + 0.25 + 1) / 3)


def test_an_evaluation_pass_within_the_recorded_one_does_not_count():
    module = nn.GELU()
    x = torch.randn(5, 4)
    with ActivationRecorder({"site": module}) as recorder:
        recorder.start()
        module(x)
        module.eval()
        module(x + 100)
        module.train()
        assert recorder.statistics()["site"]["mean"] == pytest.approx(x.mean().item(), rel=1e-6)


def test_an_activation_without_closed_form_is_differentiated_and_not_recorded_again():
    registry = activations.ActivationRegistry()

    @registry.register("cube")
    def cube(x):
        return x**3

    x = torch.randn(6, 4, dtype=torch.float64)
    for module in (registry.create("cube").train(), registry.create("cube").eval()):
        for sample_rows in (None, 1000):
            figures = recorded(module, x, sample_rows=sample_rows, registry=registry)
            assert figures["mean_abs_second_derivative"] == pytest.approx((6 * x).abs().mean().item())
            assert figures["mean_squared_derivative"] == pytest.approx((3 * x**2).square().mean().item())


def test_stochastic_activations_do_not_use_up_the_global_generator():
    module = activations.create("zero_identity_map")
    torch.manual_seed(0)
    module(torch.randn(20, 4))
    expected = torch.get_rng_state()
    torch.manual_seed(0)
    figures = recorded(module, torch.randn(20, 4))
    assert torch.equal(torch.get_rng_state(), expected)
    assert 0 < figures["mean_gate"] < 1


def test_paused_recording_does_not_see_what_checkpointing_computes_again():
    module = nn.GELU()
    x = torch.randn(6, 4, requires_grad=True)
    with ActivationRecorder({"site": module}) as recorder:
        recorder.start()
        y = checkpoint(module, x, use_reentrant=False)
        recorder.pause()
        y.sum().backward()
        recorder.resume()
        assert recorder.sums()[0, 0] == 24


def test_passes_on_the_side_of_the_training_do_not_count():
    module, x = nn.GELU(), torch.randn(6, 4)
    with ActivationRecorder({"site": module}, None) as recorder:
        recorder.start()
        with side_pass():
            module(x + 100)
        module(x)
        assert recorder.sums()[0, 0] == 24
