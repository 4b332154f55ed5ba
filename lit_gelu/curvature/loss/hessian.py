"""The Hessian of a loss as a linear operator on the flat vector of the parameters that are trained."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

from torch import Tensor, nn

from lit_gelu.curvature.loss.evaluation import Closure, Reduce, batches_of
from lit_gelu.curvature.loss.layout import ParameterLayout
from lit_gelu.curvature.loss.parameter_operator import ParameterOperator, methods_to_try
from lit_gelu.curvature.loss.products import BatchMatrix, FiniteDifferences, ForwardOverReverse, ReverseOverReverse

Method = Literal["auto", "reverse_over_reverse", "forward_over_reverse", "finite_differences", "one_sided_differences"]
METHODS: tuple[str, ...] = ("reverse_over_reverse", "forward_over_reverse", "finite_differences")
"""How a Hessian-vector product can be computed, in the order in which ``"auto"`` tries them."""

ONE_SIDED = "one_sided_differences"
"""The cheapest way and the least accurate: taken only where it is asked for."""


class HessianOperator(ParameterOperator):
    """The Hessian of a loss at the parameters as they are; made by `hessian_operator`."""


def hessian_operator(
    closure: Closure | Sequence[Closure],
    parameters: Mapping[str, Tensor],
    *,
    method: Method = "auto",
    samples: int | Sequence[int] = 1,
    module: nn.Module | None = None,
    reduce: Reduce | None = None,
    step: float | None = None,
    largest: float | None = None,
) -> HessianOperator:
    """Make the Hessian of a loss with respect to live parameters an operator on flat vectors.

    With L_b the loss of batch b, averaged over its n_b samples, the matrix is that of the loss over all samples,
    ``H = sum_b n_b H_b / sum_b n_b``, over all batches and all ranks. Nothing touches ``.grad``, train/eval flags or
    random state; a closure that draws random numbers must draw the same ones at every call, or the matrix is not
    symmetric.

    ========================= ======================= ============================ =============================
    method                    cost, after one gradient needs                       error
    ========================= ======================= ============================ =============================
    ``reverse_over_reverse``  2.1 gradients a product a double backward, its graph rounding
    ``forward_over_reverse``  3.7 gradients a product forward-mode derivatives     rounding
    ``finite_differences``    2.1 gradients a product a gradient                   3e-4 in float32, 1e-9 in float64
    ``one_sided_differences`` 1.1 gradients a product a gradient                   3e-3 in float32, 1e-7 in float64
    ========================= ======================= ============================ =============================

    The errors of differences are those of smooth losses: where the gradient jumps (ReLU, max pooling), they hold the
    jumps, which a second derivative has not.

    ``"auto"`` takes the first of the first three that works, the second only if ``module`` is given. The first product
    is the trial: a missing double backward, or a product that is not finite, makes way for the next method, which
    ``operator.method`` and ``operator.reason`` tell. Where the loss goes through a custom ``torch.autograd.Function``,
    which can lack its second derivative without an error, the first product is compared with finite differences.
    Passing ``method=operator.method`` next time saves the attempts and the comparison.

    Source: Pearlmutter 1994, "Fast exact multiplication by the Hessian", Neural Computation 6(1).

    Args:
        closure: The mean loss of one batch from the live parameters, or one closure a batch.
        parameters: By name, as ``dict(module.named_parameters())``. Frozen ones have no place in the vectors; those
            that the loss does not depend on have zeros.
        method: One of the above, or ``"auto"``.
        samples: How many samples each batch has.
        module: The module that the closure calls, for ``forward_over_reverse``.
        reduce: Sums a flat tensor over ranks: called once here and once a product, on every rank.
        step: The relative step of differences, c in `FiniteDifferences`.
        largest: The largest eigenvalue in magnitude, as far as is known: differences choose their first step by it, and
            compute fewer products twice.

    Returns:
        The operator; its graphs live until it is closed, so it is best used in a ``with`` statement.

    Raises:
        LossCurvatureError: If an argument is not accepted, the loss is no scalar or depends on no parameter.
        NonFiniteCurvatureError: If the loss or its gradient is NaN or infinite.

    Example:
        >>> import torch
        >>> weight = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> with hessian_operator(lambda: (weight**3).sum(), {"weight": weight}) as hessian:
        ...     hessian(torch.tensor([1.0, 1.0])).tolist(), hessian.method
        ([6.0, 12.0], 'reverse_over_reverse')
    """
    methods = methods_to_try(method, module, METHODS, "forward_over_reverse", only_by_name=(ONE_SIDED,))
    closures, counts = batches_of(closure, samples)
    layout = ParameterLayout(parameters)
    makers = [partial(_make_batch, each, layout, module, step, largest) for each in closures]
    return HessianOperator(makers, layout, counts, methods=methods, reduce=reduce)


def _make_batch(
    closure: Closure,
    layout: ParameterLayout,
    module: nn.Module | None,
    step: float | None,
    largest: float | None,
    method: str,
) -> BatchMatrix:
    """Return the Hessian of one batch, by a method."""
    if method == "reverse_over_reverse":
        return ReverseOverReverse(closure, layout)
    if method == "forward_over_reverse" and module is not None:
        return ForwardOverReverse(closure, layout, module)
    return FiniteDifferences(closure, layout, step, one_sided=method == ONE_SIDED, largest=largest)
