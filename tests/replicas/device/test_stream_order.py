"""Which kernels of a step wait for which: two that use the same memory must not run at the same time."""

from functools import partial

import pytest
import torch
from pretended_streams import WRITTEN, PretendedStreams

from lit_gelu.replicas import EagerExecutor, build_members
from lit_gelu.replicas.device import kernel_launches, kernel_steps
from lit_gelu.tasks import TIMITFrameClassifier, TweetTagger

NETS = {
    "many layers": (partial(TIMITFrameClassifier, width=40, noise="keys"), 286, 39),
    "padded rows": (partial(TweetTagger, vector_size=8, noise="keys"), 24, 25),
}


@pytest.fixture
def streams(monkeypatch):
    """Start a step's kernels on pretended streams."""
    pytest.importorskip("triton", reason="Triton has no build for this system")
    from lit_gelu.replicas.device import net_kernels

    made = PretendedStreams()
    monkeypatch.setattr(kernel_steps, "torch", made)
    monkeypatch.setattr(kernel_launches, "has_kernel", lambda _: True)
    for name in WRITTEN:
        monkeypatch.setattr(net_kernels, name, made.kernel(getattr(net_kernels, name), name))
    return made


def started(streams, net, steps):
    """Start the kernels of so many steps in one graph, of members with and without dropout."""
    build, features, classes = NETS[net]
    cells = [{"activation": "gelu", "keep": keep} for keep in (1.0, 0.5, 0.5)]
    executor = EagerExecutor(build_members(build, cells, range(3)), "device")
    executor.configure_optimizers()
    inputs, labels = torch.randn(64, features), torch.randint(classes, (64,))
    step = executor.device_steps._step_for(inputs, labels, torch.zeros(steps, 3, 16, dtype=torch.int32))
    assert isinstance(step, kernel_steps.KernelStep)
    step.stretches = [one._replace(stream=streams.Stream(), side=streams.Stream()) for one in step.stretches]
    step.several(steps)
    return step


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_what_uses_the_same_memory_is_ordered(streams, net, steps):
    step = started(streams, net, steps)
    assert len(streams.launches) == steps * (3 * len(step.ends) + 2)
    assert streams.unordered() == set()
    joined = streams.main.last
    assert len(joined.union(*(streams.before()[number] for number in joined))) == len(streams.launches)


def test_parameters_are_stepped_beside_the_next_step(streams):
    step = started(streams, "many layers", 2)
    second = [number for number, one in enumerate(streams.launches) if one.kernel == "layer_forward"][len(step.ends)]
    stepped = {number for number, one in enumerate(streams.launches[:second]) if one.kernel == "parameter_step"}
    assert len(stepped - streams.before()[second]) > 0


def test_a_step_that_does_not_wait_for_parameters_is_seen(streams, monkeypatch):
    monkeypatch.setattr(kernel_steps.Stretch, "wait_for", lambda *_: None)
    started(streams, "many layers", 3)
    assert ("parameter_step", "layer_forward") in streams.unordered()


def test_a_step_that_writes_where_the_one_before_is_read_is_seen(streams, monkeypatch):
    monkeypatch.setattr(kernel_steps, "_BUFFERS", 1)
    started(streams, "many layers", 3)
    assert streams.unordered()


def test_an_update_that_does_not_wait_for_gradients_is_seen(streams, monkeypatch):
    monkeypatch.setattr(kernel_steps, "fork", lambda _: None)
    started(streams, "padded rows", 2)
    assert ("layer_backward", "parameter_step") in streams.unordered()
