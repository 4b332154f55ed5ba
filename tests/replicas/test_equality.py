"""Replicas are the runs alone: weights, the optimizer's state and random numbers, at each step, to the bit."""

import functools
import itertools

import pytest
import torch
from replica_runs import batched_products_are_single_ones, check_equal, trained_alone, trained_together

from lit_gelu.tasks import MNISTAutoencoder, MNISTClassifier, TweetTagger

# Every activation meets each keep, each learning rate and each seed; one is learnable, one keeps a state, one is noisy.
SMALL = [
    ({"activation": "gelu_tanh", "learning_rate": 1e-3, "keep": 1.0}, 0),
    ({"activation": "gelu_tanh", "learning_rate": 1e-4, "keep": 0.5}, 1),
    ({"activation": "swish(beta=1.5, learnable=True)", "learning_rate": 1e-3, "keep": 0.8}, 0),
    ({"activation": "prelu", "learning_rate": 1e-4, "keep": 1.0}, 1),
    ({"activation": "prelu", "learning_rate": 1e-3, "keep": 0.5}, 0),
    ({"activation": "zero_identity_map", "learning_rate": 1e-4, "keep": 0.5}, 1),
    ({"activation": "elu", "learning_rate": 1e-3, "keep": 0.5}, 0),
]
# All combinations of four activations, two keeps, two learning rates and two seeds.
WHOLE_GRID = [
    ({"activation": activation, "keep": keep, "learning_rate": rate}, seed)
    for activation, keep, rate, seed in itertools.product(
        ("elu", "gelu_tanh", "swish(beta=1.5, learnable=True)", "zero_identity_map"), (1.0, 0.5), (1e-3, 1e-4), (0, 1)
    )
]
KINDS = ["written", "stacked", "vmap", "loop"]


def samples(count, inputs, classes):
    """Return random inputs and labels."""
    return torch.rand(count, inputs), torch.randint(classes, (count,))


def compare(build, grid, data, batch_size, steps, sizes, kinds=KINDS, order="global"):
    """Compare every way to train a group with the runs alone."""
    cells, seeds = zip(*grid, strict=True)
    alone = [trained_alone(build, cell, seed, data, batch_size, steps, order) for cell, seed in grid]
    exact = batched_products_are_single_ones(sizes, batch_size)
    for kind in kinds:
        together = trained_together(build, cells, seeds, data, batch_size, steps, kind, order)
        check_equal(alone, together, exact or kind in {"written", "loop"})


@pytest.mark.one_in(2)
@pytest.mark.parametrize("fused", [False, True])
def test_a_grid_of_classifiers(fused):
    build = functools.partial(MNISTClassifier, hidden_layers=2, fused_optimizer=fused)
    # 245 samples leave a part of a batch; 23 steps are two borders of epochs; 24 x 10 outputs are no whole vectors
    compare(build, SMALL, samples(245, 784, 10), 24, (1, 10, 23), (784, 128, 128, 10))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("order", ["global", "seed"])
def test_a_grid_of_classifiers_with_noise_by_key(order):
    build = functools.partial(MNISTClassifier, hidden_layers=2, noise="keys")
    grid = [*SMALL, ({"activation": "relu", "keep": 0.5}, 0)]  # a mask that another has too
    compare(build, grid, samples(245, 784, 10), 24, (1, 10, 23), (784, 128, 128, 10), order=order)


def test_an_activation_that_draws_in_evaluation_too():
    build = functools.partial(MNISTClassifier, hidden_layers=2)
    noisy = "zero_identity_map(evaluation='stochastic')"
    grid = [({"activation": name, "keep": keep}, seed) for name, keep, seed in ((noisy, 0.5, 0), ("gelu", 0.5, 1))]
    compare(build, grid, samples(245, 784, 10), 24, (1, 10, 23), (784, 128, 128, 10))


def test_labels_that_torch_leaves_out():
    inputs, labels = samples(245, 784, 10)
    labels[::7] = -100
    build = functools.partial(MNISTClassifier, hidden_layers=2)
    grid = [({"activation": name, "keep": 1.0}, 0) for name in ("gelu", "relu")]
    compare(build, grid, (inputs, labels), 24, (1, 10), (784, 128, 128, 10), kinds=["stacked", "vmap", "loop"])


def test_tails_of_tensors_that_are_no_whole_vectors():
    build = functools.partial(TweetTagger, vector_size=11)
    grid = [({"activation": name, "keep": 0.8}, 0) for name in ("gelu_tanh", "gelu_tanh", "silu", "mish")]
    compare(build, grid, samples(40, 33, 25), 5, (1, 10), (33, 256, 256, 25))


def test_tweets():
    names = ("relu", "gelu_tanh", "gelu_tanh", "silu")
    grid = [
        ({"activation": name, "keep": keep, "learning_rate": lr}, seed)
        for name, keep, lr, seed in zip(
            names, (0.8, 0.8, 0.5, 1.0), (1e-3, 1e-4, 1e-3, 1e-3), (0, 0, 1, 2), strict=True
        )
    ]
    compare(TweetTagger, grid, samples(16 * 8, 150, 25), 16, (1, 10, 20), (150, 256, 256, 25))


def test_autoencoder():
    grid = [({"activation": "elu", "learning_rate": 1e-4}, 1), ({"activation": "gelu_tanh"}, 0)]
    sizes = (784, 1000, 500, 250, 30, 250, 500, 1000, 784)
    compare(MNISTAutoencoder, grid, samples(64 * 2, 784, 10), 64, (1, 3), sizes, ["written", "stacked"])


@pytest.mark.full
def test_a_hundred_steps():
    build = functools.partial(MNISTClassifier, hidden_layers=2)
    compare(build, SMALL, samples(32 * 30, 784, 10), 32, (1, 10, 100), (784, 128, 128, 10))


@pytest.mark.full
def test_the_whole_classifier():
    grid = [(cell, seed) for cell, seed in SMALL if cell["activation"] in {"gelu_tanh", "elu"}]
    compare(
        MNISTClassifier,
        grid,
        samples(128 * 10, 784, 10),
        128,
        (1, 10, 100),
        (784, *[128] * 8, 10),
        ["written", "stacked"],
    )


@pytest.mark.full
def test_a_whole_grid_in_one_group():
    build = functools.partial(MNISTClassifier, hidden_layers=2)
    kinds = ["written", "stacked", "vmap"]
    assert len(WHOLE_GRID) == 32
    compare(build, WHOLE_GRID, samples(32 * 30, 784, 10), 32, (1, 10, 100), (784, 128, 128, 10), kinds)


@pytest.mark.full
@pytest.mark.parametrize(
    ("build", "sizes", "batch_size"),
    [
        pytest.param(MNISTClassifier, (784, *[128] * 8, 10), 128, id="MNIST"),
        pytest.param(TweetTagger, (150, 256, 256, 25), 16, id="tweets"),
    ],
)
def test_five_hundred_steps_of_the_whole_nets(build, sizes, batch_size):
    grid = [
        ({"activation": "elu", "keep": 1.0, "learning_rate": 1e-4}, 1),
        ({"activation": "gelu_tanh", "keep": 0.5}, 0),
        ({"activation": "relu", "keep": 0.5}, 0),
    ]
    compare(build, grid, samples(batch_size * 10, sizes[0], sizes[-1]), batch_size, (10, 100, 500), sizes, KINDS[:3])


@pytest.mark.parametrize("kind", [*(pytest.param(kind, marks=pytest.mark.full) for kind in KINDS[:2]), "vmap"])
def test_a_member_of_eighteen_is_the_one_of_a_loop_and_of_a_group_of_one(kind):
    build, data = functools.partial(TweetTagger, vector_size=8), samples(40, 24, 25)
    cells, seeds = zip(*[WHOLE_GRID[number] for number in range(0, 32, 2)], *SMALL[:2], strict=True)
    exact = kind == "written" or batched_products_are_single_ones((24, 256, 256, 25), 8)
    eighteen = trained_together(build, cells, seeds, data, 8, (1, 7), kind)
    assert len(eighteen) == 18
    check_equal(trained_together(build, cells, seeds, data, 8, (1, 7), "loop"), eighteen, exact)
    for one in (0, 17):
        by_itself = trained_together(build, cells[one : one + 1], seeds[one : one + 1], data, 8, (1, 7), kind)
        check_equal(by_itself, eighteen[one : one + 1], exact)


@pytest.mark.parametrize("order", [[1, 0, 2], [2, 1, 0]])
def test_the_order_of_members_is_of_no_consequence(order):
    build, data = functools.partial(TweetTagger, vector_size=8), samples(40, 24, 25)
    cells, seeds = zip(*SMALL[:3], strict=True)
    runs = trained_together(build, cells, seeds, data, 8, (1, 7))
    permuted = trained_together(build, [cells[r] for r in order], [seeds[r] for r in order], data, 8, (1, 7))
    check_equal([runs[r] for r in order], permuted)


def test_a_replica_that_diverges_leaves_the_others_alone():
    build, data = functools.partial(TweetTagger, vector_size=8), samples(40, 24, 25)
    cells = [{"learning_rate": lr} for lr in (1e-3, 1e30, 1e-4)]
    runs = trained_together(build, cells, [0, 0, 0], data, 8, (1, 7))
    without = trained_together(build, [cells[0], cells[2]], [0, 0], data, 8, (1, 7))
    assert not all(torch.isfinite(tensor).all() for tensor in runs[1].states[7].weights.values())
    check_equal([runs[0], runs[2]], without)
