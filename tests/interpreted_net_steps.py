"""The kernels of whole steps in Triton's interpreter, beside the same steps by autograd in float64.

python interpreted_net_steps.py OUT
"""

import copy
import functools

import pytest
import torch
from interpreted_harness import main

from lit_gelu.replicas import BatchOrder, EagerExecutor, ReplicaArgumentError, build_members
from lit_gelu.replicas.device import kernel_launches
from lit_gelu.replicas.device import kernel_steps as own
from lit_gelu.tasks import TIMITFrameClassifier, TweetTagger

CELLS = [
    {"activation": "relu", "keep": 1.0},
    {"activation": "elu", "learning_rate": 1e-4, "keep": 1.0},
    {"activation": "gelu_tanh", "keep": 0.5},
    {"activation": "gelu", "keep": 0.8},
    {"activation": "silu", "keep": 0.5},
]
SEEDS = [0, 1, 2, 2**31, 0]
# Widths that are no multiple of a tile, several tiles, and more samples in a batch than a tile has rows.
NETS = {
    "timit": (functools.partial(TIMITFrameClassifier, width=40, noise="keys"), 286, 39),
    "tweets": (functools.partial(TweetTagger, vector_size=8, noise="keys"), 24, 25),
}


def samples_of(features, classes, count=150):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, features, generator=generator), torch.randint(classes, (count,), generator=generator)


def executor_of(build, cells, dtype=torch.float32):
    """Return a group's executor, its optimizer made; kernels compute in float32 alone."""
    kernel_launches.has_kernel = lambda _: True  # which knows no float64
    executor = EagerExecutor(build_members(build, cells, SEEDS[: len(cells)]), "device")
    executor.stacks.tree.to(dtype)
    executor.configure_optimizers()
    return executor


def rows_of(executor, count, batch, steps):
    return BatchOrder(count, batch, "seed").epoch(executor.streams.generators, 0)[:steps]


def close(found, expected, most=5e-6):
    """Compare with float64, all numbers of a tensor together: of Adam's quotients near its epsilon few digits stay."""
    for name, one in found.items():
        assert (one.double() - expected[name]).norm() <= most * expected[name].norm(), name


def compared(name, cells=CELLS, batch=16, steps=2, is_inactive=False):
    """Make the same steps twice, and compare all that they change."""
    build, features, classes = NETS[name]
    inputs, labels = samples_of(features, classes)
    states = []
    for dtype in (torch.float32, torch.float64):
        executor = executor_of(build, cells, dtype)
        rows = rows_of(executor, len(inputs), batch, steps)
        pieces = (rows[:1], rows[1:])
        losses = []
        for piece in pieces:
            losses.append(executor.steps(inputs.to(dtype), labels, piece)["train_loss"])
            executor.active[1] = not is_inactive
        is_kernel = isinstance(executor.device_steps._step, own.KernelStep)
        assert is_kernel == (dtype == torch.float32)
        moments = {f"{n} {i}": m for n, pair in executor.optimizer.moments.items() for i, m in enumerate(pair)}
        weights = {n: stack.detach() for n, stack in executor.stacks.trained.items()}
        counts = {n: buffer.clone() for n, buffer in executor.stacks.buffers.items()}
        means = executor.means(inputs.to(dtype), labels)
        states.append((torch.cat(losses), weights, moments, counts, means, executor.optimizer.made))
    (losses, weights, moments, counts, means, made), (exact, *expected) = states
    torch.testing.assert_close(losses.double(), exact, rtol=1e-5, atol=1e-6)
    close(weights, expected[0])
    close(moments, expected[1], 5e-5)  # squares of sums that cancel
    if means is not None:  # TIMIT's members are asked singly
        close(means, expected[3])
    assert made == expected[4] == steps
    for key, count in counts.items():
        assert torch.equal(count, expected[2][key])


def deep_nets_with_odd_widths():
    compared("timit", CELLS[1:4])


def a_batch_of_several_tiles():
    compared("timit", CELLS[1:3], batch=140, steps=1)


def wide_layers():
    compared("tweets", CELLS[1:3])


def nets_without_dropout():
    compared("timit", CELLS[:2], batch=20)


def all_nets_with_dropout():
    compared("timit", CELLS[3:], batch=20)


def an_inactive_replica_stays():
    compared("timit", CELLS[:2], steps=3, is_inactive=True)


def several_stretches_make_all_their_steps_one_after_the_other():
    kept, own.FEWEST_PASSES = own.FEWEST_PASSES, 3
    assert own.stretches(5, range(2, 5), own.usual_stretches(8)) == [range(3), range(3, 5)]
    compared("timit")
    own.FEWEST_PASSES = kept


def any_way_to_divide_replicas_has_the_same_bits():
    build, features, classes = NETS["timit"]
    inputs, labels = samples_of(features, classes)
    found = []
    for way in (1, 2):
        executor = executor_of(build, CELLS[1:4])
        rows = rows_of(executor, len(inputs), 16, 1)
        step = executor.device_steps._step_for(inputs, labels, rows)
        step.divide(way)
        assert len(step.stretches) == way
        losses = executor.steps(inputs, labels, rows)["train_loss"]
        found.append([losses, *(stack.detach() for stack in executor.stacks.trained.values())])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def some_replicas_are_measured():
    build, features, classes = NETS["timit"]
    executor = executor_of(build, CELLS)
    inputs, _ = samples_of(features, classes)
    found = executor.device_steps.fused.noise_free_outputs(inputs, torch.tensor([4, 1]))
    exact = executor_of(build, CELLS, torch.float64).device_steps.fused.noise_free_outputs(inputs.double())
    close({"outputs": found}, {"outputs": exact[[4, 1]]})


def a_class_of_no_number_is_predicted_as_torch_does():
    build, features, classes = NETS["timit"]
    executor = executor_of(build, CELLS[:3])
    inputs, labels = samples_of(features, classes)
    biases = executor.stacks.parameters["output.bias"].detach()
    biases[1, 3], biases[1, 5] = torch.inf, torch.nan
    fused = executor.device_steps.fused
    losses, errors = fused.noise_free_values(inputs, labels)
    outputs = fused.noise_free_outputs(inputs)
    assert torch.equal(errors.bool(), outputs.argmax(2) != labels)
    assert losses[1].isnan().all()
    for replica in (0, 2):
        expected = torch.nn.functional.cross_entropy(outputs[replica].double(), labels, reduction="none")
        torch.testing.assert_close(losses[replica].double(), expected, rtol=1e-5, atol=1e-6)


def a_loss_that_is_no_number_is_told():
    build, features, classes = NETS["timit"]
    executor = executor_of(build, CELLS[:3])
    inputs, labels = samples_of(features, classes)
    rows = rows_of(executor, len(inputs), 16, 1)
    executor.stacks.parameters["hidden.1.linear.weight"].detach()[1, 0, 0] = torch.nan
    losses = executor.steps(inputs, labels, rows)["train_loss"]
    assert losses.isnan().any(0).tolist() == [False, True, False]


def a_replica_that_had_diverged_goes_on_from_good_weights():
    build, features, classes = NETS["tweets"]
    inputs, labels = samples_of(features, classes)
    executor = executor_of(build, CELLS[1:3])
    rows = rows_of(executor, len(inputs), 16, 2)
    good = {name: stack.detach().clone() for name, stack in executor.stacks.parameters.items()}
    first = executor.steps(inputs, labels, rows[:1])["train_loss"]
    for bad in (True, False):
        executor.optimizer.load_state_dict(copy.deepcopy(executor_of(build, CELLS[1:3]).optimizer.state_dict()))
        for name, stack in executor.stacks.parameters.items():
            stack.detach().copy_(good[name])
            if bad:
                stack.detach()[1] = torch.nan
        for rule in executor.device_steps._step.keyed:
            rule.buffers.step.zero_()
        losses = executor.steps(inputs, labels, rows[:1])["train_loss"]
        assert losses.isnan().tolist() == [[False, bad]]
    assert torch.equal(losses, first)


def an_interrupt_leaves_no_layer_behind():
    build, features, classes = NETS["tweets"]
    inputs, labels = samples_of(features, classes)
    executor = executor_of(build, CELLS[1:3])
    rows = rows_of(executor, len(inputs), 16, 2)
    executor.steps(inputs, labels, rows[:1])
    before = {name: stack.detach().clone() for name, stack in executor.stacks.trained.items()}
    run = executor.device_steps._run

    def interrupted(_):
        run(1)
        raise KeyboardInterrupt

    executor.device_steps._run = interrupted
    with pytest.raises(KeyboardInterrupt):
        executor.steps(inputs, labels, rows[1:])
    assert all((stack != before[name]).any() for name, stack in executor.stacks.trained.items())


def labels_that_are_no_classes_are_refused():
    build, features, classes = NETS["timit"]
    inputs, labels = samples_of(features, classes)
    for label in (-1, classes):
        executor = executor_of(build, CELLS)
        labels[3] = label
        with pytest.raises(ReplicaArgumentError, match=f"{classes} classes"):
            executor.steps(inputs, labels, rows_of(executor, len(inputs), 16, 1))


CHECKS = (
    deep_nets_with_odd_widths,
    a_batch_of_several_tiles,
    wide_layers,
    nets_without_dropout,
    all_nets_with_dropout,
    an_inactive_replica_stays,
    several_stretches_make_all_their_steps_one_after_the_other,
    any_way_to_divide_replicas_has_the_same_bits,
    some_replicas_are_measured,
    a_class_of_no_number_is_predicted_as_torch_does,
    a_loss_that_is_no_number_is_told,
    a_replica_that_had_diverged_goes_on_from_good_weights,
    an_interrupt_leaves_no_layer_behind,
    labels_that_are_no_classes_are_refused,
)

if __name__ == "__main__":
    main(CHECKS)
