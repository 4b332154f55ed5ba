"""Where training settles: full-batch Adam at 38 / rate, SGD's batch sharpness at 2 / rate.

    python benchmarks/edge_of_stability.py              some minutes on one core

A net of two hidden layers learns scikit-learn's digits by the mean square. With all examples in each step Adam's
preconditioned sharpness rises to ``(2 + 2 beta1) / ((1 - beta1) rate)`` and stays there (Cohen et al. 2022, arXiv
2207.14484). With small batches the sharpness along their gradients rises to ``2 / rate`` (Andreyev and Beneventano
2024, arXiv 2412.20553). Printed are the means over the last quarter of a run, in units of the limit.
"""

import argparse
import statistics

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from lit_gelu.curvature.loss import extreme_eigenvalues, hessian_operator
from lit_gelu.curvature.loss.parameters import ParameterLayout
from lit_gelu.curvature.loss.preconditioner import PreconditionedOperator, preconditioner_of

WIDTH = 64
EVENTS = 40  # of a run


def digits(count: int) -> tuple[Tensor, Tensor]:
    """Return examples and one-hot targets."""
    data = load_digits()
    x = torch.tensor(data.data[:count], dtype=torch.float32) / 16
    return x - x.mean(0), nn.functional.one_hot(torch.tensor(data.target[:count]), 10).float()


def net() -> nn.Module:
    """Return the net, the same each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 10))


def of_adam(rate: float, steps: int) -> list[float]:
    """Return the preconditioned sharpness of a run with all examples, in units of its limit."""
    model, (x, y) = net(), digits(1000)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    parameters, start, shares = dict(model.named_parameters()), None, []

    def loss() -> Tensor:
        return (model(x) - y).square().sum(1).mean() / 2

    for step in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        if (step + 1) % (steps // EVENTS) == 0:
            preconditioner = preconditioner_of([optimizer], ParameterLayout(parameters))
            with hessian_operator(loss, parameters) as hessian:
                (pair,) = extreme_eigenvalues(PreconditionedOperator(hessian, preconditioner), start=start, steps=12)
            start = pair.vector
            shares.append(pair.estimate / preconditioner.limit)
    return shares


def of_sgd(rate: float, steps: int, batch: int) -> list[float]:
    """Return the batch sharpness of a run with small batches, in units of its limit."""
    model, (x, y) = net(), digits(1000)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    parameters, generator, shares = dict(model.named_parameters()), torch.Generator().manual_seed(1), []

    def loss(rows: Tensor) -> Tensor:
        return (model(x[rows]) - y[rows]).square().sum(1).mean() / 2

    for step in range(steps):
        optimizer.zero_grad()
        loss(torch.randint(len(x), (batch,), generator=generator)).backward()
        optimizer.step()
        if (step + 1) % (steps // EVENTS) == 0:
            batches = torch.randint(len(x), (64, batch), generator=generator)
            closures = [lambda rows=rows: loss(rows) for rows in batches]  # type: ignore[misc]
            with hessian_operator(closures, parameters, samples=[batch] * len(batches)) as hessian:
                shares.append(float(hessian.along_gradients().mean()) * rate / 2)
    return shares


def main() -> None:
    """Print where runs settle."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    runs = {
        "Adam, all examples, rate 0.001": lambda: of_adam(1e-3, 3000),
        "Adam, all examples, rate 0.003": lambda: of_adam(3e-3, 3000),
        "SGD, batches of 16, rate 0.8": lambda: of_sgd(0.8, 8000, 16),
        "SGD, batches of 64, rate 0.8": lambda: of_sgd(0.8, 8000, 64),
    }
    for name, run in runs.items():
        late = run()[-EVENTS // 4 :]
        print(f"{name}: {statistics.mean(late):.3f} of the limit, from {min(late):.3f} to {max(late):.3f}", flush=True)


if __name__ == "__main__":
    main()
