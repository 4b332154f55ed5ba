"""`noise_robustness`: error and log loss of a trained classifier under uniform noise on its inputs (section 3.1)."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from lit_gelu.arguments import check_count
from lit_gelu.display import Displayed, HtmlTable
from lit_gelu.errors import ArgumentError, shown
from lit_gelu.sandbox import evaluation_sandbox, isolated_random_state

_ROWS = 1000  # of tensors given whole; a bound on memory, without effect on the noise


@dataclass(frozen=True, repr=False)
class RobustnessCurves(Displayed):
    """Error and log loss (mean cross-entropy in nats) of a classifier at each level of noise, means over the draws.

    Spreads are standard deviations over the draws, 0 for one; the other fields are arguments of `noise_robustness`.
    """

    levels: tuple[float, ...]
    error: tuple[float, ...]
    loss: tuple[float, ...]
    error_spread: tuple[float, ...]
    loss_spread: tuple[float, ...]
    samples: int
    draws: int
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Return the curves as plain data, with a list for each curve."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def _html_table(self) -> HtmlTable:
        columns = (self.levels, self.error, self.error_spread, self.loss, self.loss_spread)
        head = ("level", "error", "its spread", "loss", "its spread")
        return HtmlTable(head, list(zip(*columns, strict=True)), f"{self.samples} samples, {self.draws} draws")


def noise_robustness(
    module: nn.Module, data: Any, levels: Sequence[float], draws: int = 1, seed: int = 0
) -> RobustnessCurves:
    r"""Measure a classifier on inputs with uniform noise of growing strength.

    .. math:: x' = x + u, \qquad u \sim \mathrm{Uniform}[-a, a)

    for each level :math:`a`, on every sample of the test set. The GELU paper does this with its MNIST nets trained
    without dropout, for :math:`a` from 0 to 3 (Hendrycks and Gimpel 2016, arXiv 1606.08415, section 3.1, figure 3). It
    does not say whether the noise is drawn for each pixel or the sum is clipped: here it is drawn for each pixel and
    not clipped. Learning rates move these curves more than activations do, so compare nets at equal ones.

    The numbers drawn depend on ``seed``, the level, the number of the draw and the sample's place in the data: two
    modules see the same noisy inputs. Module and global random state are as before afterwards.

    Args:
        module: A LightningModule or any module from inputs ``[batch, ...]`` to logits ``[batch, classes]``; it is run
            in evaluation mode, on the device it is on.
        data: A LightningDataModule, whose test set is taken; a DataLoader, or another iterable of batches ``(inputs,
            labels)``; or such a pair of tensors. Inputs are of a floating dtype, labels ``[batch]``, integers.
        levels: The levels ``a``, in units of the inputs: finite numbers of at least 0.
        draws: Draws at each level; the curves are means over them.
        seed: Seed of the draws, an integer of at least 0.

    Returns:
        The curves.

    Raises:
        ArgumentError: If an argument is out of its range, the data hold no sample or something else than inputs and
            labels, or the module gives something else than logits.

    Example:
        >>> inputs, labels = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), torch.tensor([0, 1, 0])
        >>> curves = noise_robustness(nn.Identity(), (inputs, labels), levels=[0, 10], draws=100)
        >>> curves.error[0], 0.4 < curves.error[1] < 0.6
        (0.0, True)
    """
    try:
        strengths = tuple(float(level) + 0.0 for level in levels)  # -0.0 is 0.0: a level has one draw
    except (TypeError, ValueError):
        strengths = ()
    if not strengths or not all(0 <= level < math.inf for level in strengths):
        raise ArgumentError(
            f"levels={shown(levels)} is not accepted. Give finite numbers of at least 0, such as [0, 0.5, 1, 2, 3]."
        )
    check_count("draws", draws, 1)
    check_count("seed", seed, 0)
    places = list(np.ndindex(len(strengths), draws))
    generators = {}
    for level, draw in places:  # what one draws does not depend on what the other levels are
        bits = int(np.float64(strengths[level]).view(np.uint64))
        state = np.random.SeedSequence([seed, bits, draw]).generate_state(1, np.uint64)
        generators[level, draw] = torch.Generator().manual_seed(int(state[0]))
    device = next((tensor.device for tensor in chain(module.parameters(), module.buffers())), torch.device("cpu"))
    sums = torch.zeros(len(strengths), draws, 2, dtype=torch.float64, device=device)  # wrong classes, and losses
    samples = 0
    # Iterating over a DataLoader draws a number from the global state; some modules draw in evaluation, too.
    with isolated_random_state(module), evaluation_sandbox(module):
        for batch in _batches(data):
            inputs, labels = _checked_batch(batch)
            samples += len(labels)
            for place in places:
                uniform = torch.rand(inputs.shape, generator=generators[place], dtype=torch.float32)
                noisy = inputs + uniform.mul_(2).sub_(1).mul_(strengths[place[0]]).to(inputs)
                sums[place] += _wrong_and_loss(module, noisy.to(device), labels)
    if not samples:
        raise ArgumentError("The data hold no sample. Give a test set, a DataLoader or a pair (inputs, labels).")
    means = sums.cpu().numpy() / samples
    with np.errstate(invalid="ignore"):  # an infinite loss has no deviation: NaN, without a warning
        spreads = (means - means[:, :1]).std(axis=1)  # from the first draw: exactly 0 where all are equal
    (error, loss), (error_spread, loss_spread) = (
        (tuple(values[:, 0].tolist()), tuple(values[:, 1].tolist())) for values in (means.mean(axis=1), spreads)
    )
    return RobustnessCurves(strengths, error, loss, error_spread, loss_spread, samples, draws, seed)


def _wrong_and_loss(module: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return how many classes of a batch are wrong, and the sum of the cross-entropies: float64, ``[2]``."""
    dtypes = (parameter.dtype for parameter in module.parameters() if parameter.is_floating_point())
    logits = module(inputs.to(next(dtypes, inputs.dtype)))  # the net's own, which is bfloat16 after bf16-true
    classes = logits.shape[1] if isinstance(logits, Tensor) and logits.shape[:-1] == labels.shape else 0
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise ArgumentError(
            f"{type(module).__name__} gives no logits [batch, classes] for labels from {int(labels.min())} to "
            f"{int(labels.max())}. Give a classifier, and data of the classes that it was trained on."
        )
    labels = labels.to(logits.device)
    wrong = (logits.argmax(dim=1) != labels).sum().double()
    return torch.stack([wrong, functional.cross_entropy(logits.double(), labels, reduction="sum")])


def _batches(data: Any) -> Iterator[Any]:
    """Return batches of a data module's test set, of a pair of tensors, or of what gives batches itself."""
    if isinstance(data, LightningDataModule):
        data.prepare_data()
        data.setup("test")
        loaders = data.test_dataloader()
        return chain.from_iterable(loaders) if isinstance(loaders, (list, tuple)) else iter(loaders)
    if isinstance(data, (tuple, list)) and len(data) == 2 and isinstance(data[0], Tensor):
        inputs, labels = _checked_batch(data)
        return zip(torch.split(inputs, _ROWS), torch.split(labels, _ROWS), strict=True)
    if isinstance(data, Iterable) and not isinstance(data, Tensor):
        return iter(data)
    raise ArgumentError(
        f"data={type(data).__name__} given; accepted: a LightningDataModule, a DataLoader of (inputs, labels), or a "
        "pair of tensors (inputs, labels)."
    )


def _checked_batch(batch: Any) -> tuple[Tensor, Tensor]:
    """Return inputs and labels, and refuse any other batch."""
    match batch:
        case (Tensor() as inputs, Tensor() as labels):
            fits = inputs.ndim > 1 and inputs.is_floating_point() and labels.shape == inputs.shape[:1]
            if fits and labels.numel() and not labels.is_floating_point() and not labels.is_complex():
                return inputs, labels.long()
    shapes = [f"{list(part.shape)} {part.dtype}" for part in tree_leaves(batch) if isinstance(part, Tensor)]
    raise ArgumentError(
        f"A batch is {type(batch).__name__} of {', '.join(shapes) or 'no tensors'}; accepted: a pair (inputs, labels), "
        "inputs [batch, ...] of a floating dtype, scaled as the module takes them, labels [batch], integers."
    )
