"""The Hessian of a loss as a linear operator on the vector of trained parameters."""

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointError

from lit_gelu.activations.families import COMPOSED
from lit_gelu.curvature.activation.statistics import accumulation_dtype
from lit_gelu.curvature.loss.parameters import (
    Closure,
    ParameterLayout,
    Reduce,
    batches_of,
    check_checkpoints,
    differentiate,
    displaced,
    evaluate_loss,
    is_finite,
    kinds_of,
    weighted_mean,
    without_autocast,
)
from lit_gelu.curvature.loss.vocabulary import ChunkedCrossEntropy, is_chunked
from lit_gelu.display import Displayed
from lit_gelu.errors import ArgumentError, LitGeluError, UnsupportedRunError, message_of

_HIDDEN = 0.05
"""A product that is farther than this share from a difference of gradients lacks a part."""

_SHORTEST = 20.0
"""In units of the rounding unit: with shorter steps, the rounding of the parameters themselves is seen."""

_REMEDY = (
    "Define curvature_loss(self, batch) on the module with functions that torch can differentiate twice, or measure "
    "the activations alone, with ActivationCurvatureMonitor."
)


class ParameterOperator:
    """A symmetric matrix over the parameters of a model: the mean over batches and ranks of one a batch.

    Attributes:
        parameters: Where each parameter lies in a vector.
        size: How many parameters are trained.
        dtype: Of the vectors.
        device: Of the vectors.
        loss: The loss over all samples, no dimensions.
        gradient: Its gradient, shape ``[size]``.
        products: How many products were computed.
        note: Which functions were computed in another way so that they can be differentiated twice; mostly empty.
    """

    def __init__(
        self,
        batches: "Sequence[_HessianOfBatch]",
        layout: ParameterLayout,
        counts: Sequence[int],
        reduce: Reduce | None,
    ) -> None:
        self.parameters = layout
        self.size, self.dtype, self.device = layout.size, layout.dtype, layout.device
        self.products = 0
        self._batches, self._counts, self._reduce = list(batches), list(counts), reduce
        self.gradient = weighted_mean((batch.record() for batch in batches), self._counts, reduce)
        self.loss = weighted_mean([batch.loss.reshape(1) for batch in batches], self._counts, reduce)[0]
        self.note = next((batch.note for batch in batches if batch.note), "")
        if not (is_finite(self.gradient) and self.loss.isfinite()):
            names = [name for name, part in layout.slices.items() if not self.gradient[part].isfinite().all()]
            raise UnsupportedRunError(
                f"The loss is {self.loss.item():.6g}, and its gradient is not finite for {', '.join(names) or 'none'}. "
                "Look at the step before: the parameters or the batch hold values that are not finite, the learning "
                "rate is too large, or a square root or logarithm at 0, or 16-bit overflow, does that."
            )

    def __call__(self, vector: Tensor) -> Tensor:
        """Return the product with a vector; of the first one the host looks whether it is finite."""
        if not self._batches:
            raise ArgumentError("The operator was closed, and its graph is gone. Make a new one.")
        vector = self.parameters.check(vector, "The vector")
        try:
            product = weighted_mean((batch.product(vector) for batch in self._batches), self._counts, self._reduce)
        except RuntimeError as error:
            raise _no_second_derivative(error) from error
        if self.products == 0:  # the sums of later ones show it anyway, and the host shall not wait for them
            if not is_finite(product):
                raise UnsupportedRunError(
                    "A product with the matrix is not finite, though loss and gradient are. Give a finite vector, and "
                    "keep the parameters in float32: in 16 bits an activation's second derivative overflows."
                )
            self._compare(product, vector)
        self.products += 1
        return product

    def agreed(self, numbers: Tensor) -> Tensor:
        """Return the mean of numbers over ranks, the very same on all: what a common decision must rest on."""
        return numbers if self._reduce is None else weighted_mean([numbers], [1], self._reduce)

    def along_gradients(self) -> Tensor:
        """Return g'Hg / g'g of each batch, with its own gradient and Hessian; a product a batch."""
        if self.products == 0 and any(batch.is_custom for batch in self._batches):
            self(self.gradient)  # which is compared
        pairs = (batch.along_gradient() for batch in self._batches)
        ratios = [gradient.dot(product) / gradient.dot(gradient) for gradient, product in pairs]
        self.products += 1
        return torch.stack(ratios)

    def close(self) -> None:
        """Release the graphs that products are computed from."""
        self._batches = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _compare(self, product: Tensor, vector: Tensor) -> None:
        """Where a pass back is written in Python, compare the first product with a difference of gradients."""
        if not any(batch.is_custom for batch in self._batches):
            return
        # The difference is ``(g(theta + h v) - g(theta - h v)) / 2h``, its step that of a product near ``H v``.
        # With the cube root c of the coarsest rounding unit (4.9e-3 in float32, 6.1e-6 in float64, 0.2 in bfloat16),
        # which balances the rounding of g against the third derivative, the gradient changes by c of its length, and
        # the parameters by no more than c of theirs.
        #
        # Source: Nocedal and Wright 2006, "Numerical Optimization", section 8.1.
        layout = self.parameters
        slope, length, scale, bend = (float(v.norm()) for v in (self.gradient, vector, layout.values(), product))
        step = math.cbrt(max(torch.finfo(tensor.dtype).eps for tensor in layout.tensors.values()))
        longest, shortest = step * (scale or 1.0), _SHORTEST * step**3 * (scale or 1.0)
        reach = min(longest, max(shortest, step * slope * length / bend)) if bend else longest
        h = reach / (length or 1.0)
        rows = []
        with displaced(layout) as move:
            for batch in self._batches:
                move(vector, h)
                ahead = layout.flatten(differentiate(evaluate_loss(batch.closure), layout))
                move(vector, -h)
                ahead.sub_(layout.flatten(differentiate(evaluate_loss(batch.closure), layout)))
                rows.append(ahead.div_(2 * h))
        reference = weighted_mean(rows, self._counts, self._reduce)
        error = float((product - reference).norm() / reference.norm())
        if error > max(_HIDDEN, 2 * step):
            raise ArgumentError(
                f"The product with the Hessian is {error:.0%} off from the difference of two gradients: the pass back "
                f"of a custom torch.autograd.Function hides its own derivative. {_REMEDY}"
            )


def hessian_operator(
    closure: Closure | Sequence[Closure],
    parameters: Mapping[str, Tensor],
    *,
    samples: int | Sequence[int] = 1,
    reduce: Reduce | None = None,
    keep_graphs: bool = True,
) -> ParameterOperator:
    """Make the Hessian of a loss with respect to live parameters an operator on flat vectors.

    With L_b the loss of batch b, averaged over its n_b samples, the matrix is that of the loss over all samples,
    ``H = sum_b n_b H_b / sum_b n_b``, over all batches and all ranks. ``H v`` is the gradient of ``g'v`` over a graph
    of the gradient g that is recorded once: exact up to rounding, 2.1 gradients a product. A closure that draws random
    numbers must draw the same ones at every call. Where the loss goes through a custom ``torch.autograd.Function``,
    which can lack its second derivative without an error, the first product is compared with a difference of gradients.

    Source: Pearlmutter 1994, "Fast exact multiplication by the Hessian", Neural Computation 6(1).

    Args:
        closure: The mean loss of one batch from the live parameters, or one closure a batch.
        parameters: By name, as ``dict(module.named_parameters())``. Frozen ones have no place in the vectors; those
            that the loss does not depend on have zeros.
        samples: How many samples each batch has.
        reduce: Sums a flat tensor over ranks: called twice here and once a product, on every rank.
        keep_graphs: Keep the graphs of all batches; ``False`` records a batch's graph anew in each product, and drops
            it: the memory of one batch.

    Returns:
        The operator; its graphs live until it is closed, so it is best used in a ``with`` statement.

    Raises:
        ArgumentError: If an argument is not accepted, the loss is no scalar, depends on no parameter, or cannot be
            differentiated twice (here, or at the first product).
        UnsupportedRunError: If the loss or its gradient is NaN or infinite.

    Example:
        >>> weight = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> with hessian_operator(lambda: (weight**3).sum(), {"weight": weight}) as hessian:
        ...     hessian(torch.tensor([1.0, 1.0])).tolist()
        [6.0, 12.0]
    """
    closures, counts = batches_of(closure, samples)
    layout = ParameterLayout(parameters)
    return ParameterOperator([_HessianOfBatch(each, layout, keep_graphs) for each in closures], layout, counts, reduce)


class _HessianOfBatch:
    """H v as the gradient of ``g . v``, over a graph of the gradient g."""

    def __init__(self, closure: Closure, layout: ParameterLayout, keeps_graph: bool) -> None:
        self.closure = closure
        self._layout, self._tensors = layout, list(layout.tensors.values())
        self._keeps_graph = keeps_graph
        self._graph: Tensor | None = None
        self._modes: tuple[type[TorchFunctionMode], ...] = (ChunkedCrossEntropy,)

    def record(self) -> Tensor:
        """Compute the loss and return its gradient, having seen that both can be differentiated further."""
        loss = self._evaluate()
        kinds = kinds_of(loss)
        check_checkpoints(kinds)
        # A backward that is written in Python may compute its result without autograd recording it; a second derivative
        # then lacks that part, without an error.
        self.is_custom = any(not is_chunked(kind) and issubclass(kind, BackwardCFunction) for kind in kinds)
        composed = [each for each in COMPOSED if any(kind.__name__.startswith(each.node) for kind in kinds)]
        self.note = "; ".join(each.note for each in composed)
        try:
            if composed:
                self._modes = (ChunkedCrossEntropy, _Composed)
                loss = self._evaluate()
            try:
                gradient = self._differentiate(loss)
            except CheckpointError:  # a checkpointed head is computed again where no mode is active
                self._modes = (_Composed,)
                loss = self._evaluate()
                gradient = self._differentiate(loss)
        except RuntimeError as error:
            raise _no_second_derivative(error) from error
        # That mark ends the graph in a node of torch's class `Error`, which leads to no parameter: torch.autograd.grad
        # does not reach it, so it does not raise, and that share of the second derivative would be zero.
        if any(kind.__name__.endswith("Error") for kind in kinds_of(gradient)):
            raise _no_second_derivative(RuntimeError("a custom backward is marked with @once_differentiable"))
        self.loss = loss.detach().to(gradient)
        if self._keeps_graph:
            self._graph = gradient
        return gradient.detach()

    def product(self, vector: Tensor) -> Tensor:
        """Return ``H v``."""
        return self._product(self._gradient(), vector)

    def along_gradient(self) -> tuple[Tensor, Tensor]:
        """Return g and ``H g``."""
        gradient = self._gradient()
        return gradient.detach(), self._product(gradient, gradient.detach())

    def _evaluate(self) -> Tensor:
        with ExitStack() as stack:
            for mode in self._modes:
                stack.enter_context(mode())
            return evaluate_loss(self.closure)

    def _differentiate(self, loss: Tensor) -> Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            # One flat output: of one tensor a parameter, torch checks shape and type in Python at every product.
            return self._layout.flatten(differentiate(loss, self._layout, create_graph=True))

    def _gradient(self) -> Tensor:
        return self._differentiate(self._evaluate()) if self._graph is None else self._graph

    def _product(self, gradient: Tensor, vector: Tensor) -> Tensor:
        if not gradient.requires_grad:  # the loss is linear in the parameters
            return torch.zeros_like(vector)
        with torch.inference_mode(False), without_autocast(self._layout.device):
            product = torch.autograd.grad(
                gradient, self._tensors, grad_outputs=vector, retain_graph=self._keeps_graph, allow_unused=True
            )
        return self._layout.flatten(product)


class _Composed(TorchFunctionMode):
    """While active, functions whose double backward torch gets wrong are computed from others."""

    FUNCTIONS = {function: other for each in COMPOSED for function, other in each.functions.items()}  # noqa: RUF012

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.FUNCTIONS.get(func, func)(*args, **(kwargs or {}))


def _no_second_derivative(error: RuntimeError) -> RuntimeError | ArgumentError:
    """Return the error to raise where torch cannot differentiate twice; ours, and of memory, stay what they are."""
    if isinstance(error, (LitGeluError, torch.OutOfMemoryError)):
        return error
    return ArgumentError(f"The loss cannot be differentiated twice: {message_of(error)}. {_REMEDY}")


@dataclass(frozen=True, repr=False)
class DirectionalCurvature(Displayed):
    """How curved the loss is along an update u, which moves the parameters from theta to theta + u.

    Attributes:
        curvature: ``u'Hu / u'u``, with H the Hessian at theta: between its smallest and largest eigenvalue.
        slope: ``g'u``, with g the gradient at theta; negative if the update descends.
        stability: ``u'Hu / (-2 g'u)``: at 1 or more, the quadratic model has the loss rise on this step. NaN without
            slope.
    """

    curvature: float
    slope: float
    stability: float


def curvature_along(hessian: ParameterOperator, update: Tensor) -> DirectionalCurvature:
    """Measure the curvature along an update by one product with the Hessian before it, exactly.

    Args:
        hessian: The Hessian at theta, where the update begins.
        update: u, shape ``[size]``; it need not have been taken.

    Returns:
        The figures, as exact as the operator's products; NaN where they are divided by 0.

    Raises:
        ArgumentError: If the update has another shape.
        UnsupportedRunError: If the product is NaN or infinite.

    Example:
        >>> from lit_gelu.curvature.loss import hessian_operator
        >>> weight = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> with hessian_operator(lambda: (weight**3).sum(), {"weight": weight}) as hessian:
        ...     figures = curvature_along(hessian, torch.tensor([-0.1, 0.0]))
        >>> round(figures.curvature, 5), round(figures.slope, 5), round(figures.stability, 5)
        (6.0, -0.3, 0.1)
    """
    update = hessian.parameters.check(update, "The update")
    dtype = accumulation_dtype(update.device)
    pairs = ((update, hessian(update)), (hessian.gradient, update), (update, update))
    form, slope, length = torch.stack([(a * b).sum(dtype=dtype) for a, b in pairs]).tolist()
    if not all(map(math.isfinite, (form, slope, length))):
        raise UnsupportedRunError(
            f"u'Hu = {form}, g'u = {slope}, u'u = {length}: the loss or its gradient is not finite along the update. "
            "The learning rate may be too large."
        )
    return DirectionalCurvature(
        curvature=form / length if length else math.nan,
        slope=slope,
        stability=form / (-2 * slope) if slope else math.nan,
    )
