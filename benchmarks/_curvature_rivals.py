"""What else measures curvature or activations: two monitors after their descriptions, three packages as installed."""

import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.curvature.loss import ParameterLayout, hessian_operator

PACKAGES = {
    "PyHessian": "pyhessian",
    "hessian-eigenthings": "hessian_eigenthings",
    "curvlinops": "curvlinops",
}
"""By the name people know: the module."""


class ComposerStyle(Callback):
    """Largest value, mean, length and kurtosis of what goes in and out of modules, each read at once.

    After what is known of Composer's ActivationMonitor: hooks are put on for each measured batch and taken off after
    it, and an output that is a tensor is walked along its batch axis.

    Args:
        classes: Which modules.
    """

    def __init__(self, classes: type[nn.Module]) -> None:
        self.classes = classes
        self.figures: list[float] = []
        self._handles: list[Any] = []

    def on_train_batch_start(self, _trainer: Any, model: LightningModule, *_: Any) -> None:
        """Put hooks on."""
        self.figures.clear()
        leaves = [m for m in model.modules() if isinstance(m, self.classes) and next(m.children(), None) is None]
        self._handles = [leaf.register_forward_hook(self._see) for leaf in leaves]

    def on_train_batch_end(self, *_: Any) -> None:
        """Take them off."""
        for handle in self._handles:
            handle.remove()

    def _see(self, _module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        for x in (*inputs, *output):
            if isinstance(x, Tensor) and x.is_floating_point():
                self._measure(x.detach())

    def _measure(self, x: Tensor) -> None:
        centred = x - x.mean()
        kurtosis = centred.pow(4).mean() / centred.square().mean().square()
        self.figures += [x.max().item(), x.mean().item(), x.norm().item(), kurtosis.item()]


class FastaiStyle(Callback):
    """Mean, standard deviation and share near zero of what modules put out, read at once, and a histogram.

    After what is known of fastai's ActivationStats, with the activations among its modules, which it leaves out unless
    asked.

    Args:
        classes: Which modules.
    """

    def __init__(self, classes: type[nn.Module]) -> None:
        self.classes = classes
        self.figures: list[Any] = []
        self._handles: list[Any] = []

    def on_fit_start(self, _trainer: Any, model: LightningModule) -> None:
        """Put hooks on."""
        self._handles = [m.register_forward_hook(self._see) for m in model.modules() if isinstance(m, self.classes)]

    def on_train_batch_start(self, *_: Any) -> None:
        """Forget the batch before."""
        self.figures.clear()

    def teardown(self, *_: Any, **__: Any) -> None:
        """Take hooks off."""
        for handle in self._handles:
            handle.remove()

    def _see(self, _module: nn.Module, _inputs: Any, output: Tensor) -> None:
        x = output.detach().float().cpu()
        near_zero = (x.abs() <= 0.05).long().sum()
        self.figures.append((x.mean().item(), x.std().item(), near_zero.item() / x.numel(), x.histc(40, 0, 10)))


def missing_packages() -> list[str]:
    """Return which packages are not installed.

    Returns:
        Their names.
    """
    return [name for name, module in PACKAGES.items() if find_spec(module) is None]


def package_runs(model: nn.Module, inputs: Tensor, targets: Tensor) -> dict[str, Callable[[], float]]:
    """Return a way to the top eigenvalue of the loss on one batch for each package that is installed, at its defaults.

    Args:
        model: From inputs to logits.
        inputs: A batch.
        targets: One class a row of logits.

    Returns:
        By name, what computes it.
    """
    data = [(inputs, targets)]
    parameters = [p for p in model.parameters() if p.requires_grad]
    criterion = nn.CrossEntropyLoss()

    def pyhessian() -> float:
        from pyhessian import hessian

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it calls backward(create_graph=True), of which torch warns
            (values, _) = hessian(model, criterion, data=data[0], cuda=False).eigenvalues(
                maxIter=100, tol=1e-3, top_n=1
            )
        model.zero_grad()
        model.train()
        return float(values[0])

    def hessian_eigenthings(steps: int | None) -> Callable[[], float]:
        def compute() -> float:
            from hessian_eigenthings import HessianOperator, lanczos, supervised_loss

            operator = HessianOperator(model, data, supervised_loss(F.cross_entropy))
            return float(lanczos(operator, k=1, max_iter=steps, which="LA", seed=0).eigenvalues[0])

        return compute

    def curvlinops() -> float:
        from curvlinops import HessianLinearOperator
        from scipy.sparse.linalg import eigsh

        operator = HessianLinearOperator(model, criterion, parameters, data).to_scipy()
        return float(eigsh(operator, k=1, which="LA", tol=1e-2, return_eigenvectors=False)[0])

    runs: dict[str, tuple[str, Callable[[], float]]] = {
        "PyHessian, power iteration (at most 100)": ("PyHessian", pyhessian),
        "hessian-eigenthings, lanczos(k=1)": ("hessian-eigenthings", hessian_eigenthings(None)),
        "hessian-eigenthings, lanczos(k=1, max_iter=16)": ("hessian-eigenthings", hessian_eigenthings(16)),
        "curvlinops and eigsh(k=1, tol=1e-2)": ("curvlinops", curvlinops),
    }
    missing = missing_packages()
    return {name: run for name, (package, run) in runs.items() if package not in missing}


def names(packages: Sequence[str]) -> str:
    """Join names for a sentence.

    Args:
        packages: The names.

    Returns:
        A text.
    """
    return ", ".join(packages) or "none"


def full_gradient(model: nn.Module, inputs: Tensor, targets: Tensor) -> None:
    """Compute one gradient of the mean cross-entropy, and forget it.

    Args:
        model: From inputs to logits.
        inputs: A batch.
        targets: One class a row of logits.
    """
    torch.autograd.grad(F.cross_entropy(model(inputs), targets), list(model.parameters()))


def by_arpack(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    """Return the largest eigenvalue of the Hessian by scipy's Lanczos iteration with restarts.

    Args:
        model: From inputs to logits.
        inputs: A batch.
        targets: One class a row of logits.

    Returns:
        The eigenvalue, within 0.1 %.
    """
    from scipy.sparse.linalg import LinearOperator, eigsh

    parameters = dict(model.named_parameters())
    layout = ParameterLayout(parameters)

    def loss() -> Tensor:
        return F.cross_entropy(model(inputs), targets)

    with hessian_operator(loss, parameters) as hessian:

        def product(vector: Any) -> Any:
            return hessian(torch.from_numpy(np.ascontiguousarray(vector, dtype=np.float32).ravel())).numpy()

        operator = LinearOperator((layout.size, layout.size), matvec=product, dtype=np.float32)
        return float(eigsh(operator, k=1, which="LA", tol=1e-3, return_eigenvectors=False)[0])
