"""Batches and ranks of uneven sizes count by their samples."""

import threading

import pytest
import torch
from child_processes import PATIENCE
from loss_nets import classifier, full_hessian, named
from torch.nn import functional as F

from lit_gelu.curvature.loss import (
    ParameterLayout,
    extreme_eigenvalues,
    gauss_newton_operator,
    hessian_operator,
    hutchinson_trace,
    loss_and_gradient,
    mean_loss,
)
from lit_gelu.errors import ArgumentError

METHODS = ["reverse_over_reverse", "forward_over_reverse", "finite_differences"]
ATOL = {"reverse_over_reverse": 1e-13, "forward_over_reverse": 1e-13, "finite_differences": 5e-9}
SIZES = [13, 6, 1]


def parts(model, inputs, targets, sizes=SIZES):
    """One closure of the mean loss for each batch."""
    pieces = zip(inputs.split(sizes), targets.split(sizes), strict=True)
    return [lambda x=x, y=y: F.cross_entropy(model(x), y) for x, y in pieces]


def problem():
    model, inputs, _ = classifier()
    targets = torch.randint(0, 3, (20,), generator=torch.Generator().manual_seed(0))
    return model, inputs, targets


class Ranks:
    """Sums over threads that stand for ranks, and counts the sums."""

    def __init__(self, count):
        self.barrier = threading.Barrier(count, timeout=PATIENCE)
        self.sent = {}
        self.calls = 0

    def reducer(self, rank):
        def reduce(tensor):
            assert tensor.dim() == 1
            self.sent[rank] = tensor.clone()
            self.barrier.wait()
            total = sum(self.sent[r] for r in sorted(self.sent))
            if self.barrier.wait() == 0:
                self.calls += 1
            return total

        return reduce


def on_ranks(count, work):
    """Run work(rank, reduce) on every rank; return the results and how many sums were taken."""
    ranks, results, errors = Ranks(count), [None] * count, []

    def run(rank):
        try:
            results[rank] = work(rank, ranks.reducer(rank))
        except BaseException as error:  # noqa: BLE001  # raised again below, in the thread that reports it
            errors.append(error)
            ranks.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results, ranks.calls


@pytest.mark.parametrize("method", METHODS)
def test_uneven_batches_are_weighted_by_their_samples(method):  # D6: 60 + 4 weighted equally was 137 % off
    model, inputs, targets = problem()
    hessian = full_hessian(model, inputs, lambda outputs: F.cross_entropy(outputs, targets))
    vector = torch.linspace(-1, 1, len(hessian), dtype=torch.float64)
    closures = parts(model, inputs, targets)
    operator = hessian_operator(closures, named(model), samples=SIZES, method=method, module=model)
    torch.testing.assert_close(operator(vector), hessian @ vector, rtol=0, atol=ATOL[method])
    assert operator.loss.item() == pytest.approx(F.cross_entropy(model(inputs), targets).item(), rel=1e-14)
    equally = hessian_operator(closures, named(model), samples=1, method=method, module=model)
    assert (equally(vector) - hessian @ vector).norm() > 0.1 * (hessian @ vector).norm()  # so the weights matter


# The ranks are threads here, and torch has one level of dual numbers a process.
@pytest.mark.parametrize("method", ["reverse_over_reverse", "finite_differences"])
def test_ranks_with_uneven_shards_equal_one_process_with_one_sum_a_product(method):  # D10
    model, inputs, targets = problem()
    hessian = full_hessian(model, inputs, lambda outputs: F.cross_entropy(outputs, targets))
    vector = torch.linspace(-1, 1, len(hessian), dtype=torch.float64)
    closures = parts(model, inputs, targets, [13, 7])
    models = [model, classifier()[0]]
    closures = [parts(each, inputs, targets, [13, 7])[rank] for rank, each in enumerate(models)]

    def work(rank, reduce):
        operator = hessian_operator(
            closures[rank],
            named(models[rank]),
            samples=[13, 7][rank],
            method=method,
            module=models[rank],
            reduce=reduce,
        )
        return operator.loss, operator.gradient, [operator(vector) for _ in range(3)]

    results, sums = on_ranks(2, work)
    assert sums == 1 + 3
    single = hessian_operator(lambda: F.cross_entropy(model(inputs), targets), named(model))
    for loss, gradient, products in results:
        torch.testing.assert_close(loss, single.loss, rtol=1e-12, atol=0)
        torch.testing.assert_close(gradient, single.gradient, rtol=0, atol=1e-14)
        for product in products:
            torch.testing.assert_close(product, hessian @ vector, rtol=0, atol=ATOL[method])


def test_estimates_are_the_same_on_all_ranks_and_on_one_process():
    models, (_, inputs, targets) = [problem()[0] for _ in range(2)], problem()

    def work(rank, reduce):
        closure = parts(models[rank], inputs, targets, [13, 7])[rank]
        operator = hessian_operator(closure, named(models[rank]), samples=[13, 7][rank], reduce=reduce)
        return extreme_eigenvalues(operator, steps=20).value, hutchinson_trace(operator, 4, seed=0).trace

    results, _ = on_ranks(2, work)
    model = problem()[0]
    single = hessian_operator(lambda: F.cross_entropy(model(inputs), targets), named(model))
    assert results[0] == results[1]
    assert results[0][0] == pytest.approx(extreme_eigenvalues(single, steps=20).value, rel=1e-12)
    assert results[0][1] == pytest.approx(hutchinson_trace(single, 4, seed=0).trace, rel=1e-12)


def test_gauss_newton_weights_batches_and_losses_too():
    model, inputs, targets = problem()
    whole = gauss_newton_operator(lambda: model(inputs), lambda z: F.cross_entropy(z, targets), named(model))
    outputs = [lambda x=x: model(x) for x in inputs.split(SIZES)]
    losses = [lambda z, y=y: F.cross_entropy(z, y) for y in targets.split(SIZES)]
    split = gauss_newton_operator(outputs, losses, named(model), samples=SIZES)
    vector = torch.linspace(-1, 1, whole.size, dtype=torch.float64)
    torch.testing.assert_close(split(vector), whole(vector), rtol=0, atol=1e-14)
    torch.testing.assert_close(split.gradient, whole.gradient, rtol=0, atol=1e-14)


def test_loss_and_gradient_and_mean_loss_are_weighted():
    model, inputs, targets = problem()
    layout = ParameterLayout(named(model))
    loss, gradient = loss_and_gradient(parts(model, inputs, targets), layout, samples=SIZES)
    whole = F.cross_entropy(model(inputs), targets)
    expected = layout.flatten(list(torch.autograd.grad(whole, list(model.parameters()))))
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-15)
    assert loss.item() == pytest.approx(whole.item(), rel=1e-14)
    assert mean_loss(parts(model, inputs, targets), samples=SIZES).item() == pytest.approx(whole.item(), rel=1e-14)


def test_float16_products_do_not_overflow_in_the_sum_over_ranks():
    weight = torch.tensor([1.0, 1.0], dtype=torch.float16, requires_grad=True)
    closure = lambda: (300 * weight.float() ** 2).sum()  # noqa: E731
    operator = hessian_operator(closure, {"weight": weight}, samples=100_000, reduce=lambda tensor: tensor)
    assert operator(torch.ones(2)).tolist() == [600.0, 600.0]


@pytest.mark.parametrize("samples", [[1, 2], 0, [1, 1, -1]])
def test_numbers_of_samples_that_do_not_fit_are_refused(samples):
    model, inputs, targets = problem()
    with pytest.raises(ArgumentError, match="3 batches came with samples="):
        hessian_operator(parts(model, inputs, targets), named(model), samples=samples)
