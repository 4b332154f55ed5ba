"""Products and eigenvalues beside those of curvlinops, an implementation by others."""

import pytest
import torch
from loss_nets import named
from torch import nn

from lit_gelu.curvature.loss import extreme_eigenvalues, gauss_newton_operator, hessian_operator

curvlinops = pytest.importorskip("curvlinops", reason="the extra `bench` brings it")


def net_and_batches():
    """A classifier in float64 and two batches of unequal size."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    batches = [(torch.randn(n, 5, dtype=torch.float64), torch.randint(0, 3, (n,))) for n in (13, 4)]
    return model, batches


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*")  # torch's own, at the first forward-mode derivative
@pytest.mark.parametrize("kind", ["hessian", "gauss_newton"])
def test_products_and_the_largest_eigenvalue_agree(kind):
    from scipy.sparse.linalg import eigsh

    model, batches = net_and_batches()
    criterion, samples = nn.CrossEntropyLoss(), [len(y) for _, y in batches]
    theirs = {"hessian": curvlinops.HessianLinearOperator, "gauss_newton": curvlinops.GGNLinearOperator}[kind]
    reference = theirs(model, criterion, list(model.parameters()), batches).to_scipy()
    if kind == "hessian":
        closures = [lambda x=x, y=y: criterion(model(x), y) for x, y in batches]
        ours = hessian_operator(closures, named(model), samples=samples)
    else:
        outputs = [lambda x=x: model(x) for x, _ in batches]
        losses = [lambda z, y=y: criterion(z, y) for _, y in batches]
        ours = gauss_newton_operator(outputs, losses, named(model), samples=samples)
    with ours:
        for _ in range(3):
            vector = torch.randn(ours.size, dtype=torch.float64)
            torch.testing.assert_close(ours(vector), torch.from_numpy(reference @ vector.numpy()), rtol=0, atol=1e-12)
        largest = eigsh(reference, k=1, which="LA", return_eigenvectors=False)[0]
        assert extreme_eigenvalues(ours, steps=60)[0].value == pytest.approx(largest, rel=1e-9)
