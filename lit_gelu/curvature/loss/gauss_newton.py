"""The generalised Gauss-Newton matrix: the curvature of the loss through outputs that are taken as linear."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from lit_gelu.curvature.errors import LossCurvatureError
from lit_gelu.curvature.loss.evaluation import (
    Reduce,
    batches_of,
    evaluate_loss,
    without_autocast,
)
from lit_gelu.curvature.loss.graph_walk import check_differentiable, has_custom_function, kinds_of
from lit_gelu.curvature.loss.layout import ParameterLayout, displaced
from lit_gelu.curvature.loss.parameter_operator import ParameterOperator, methods_to_try
from lit_gelu.curvature.loss.products import dual_parameters, relative_step, scaled_offset, tangent_of

GaussNewtonMethod = Literal["auto", "double_vjp", "forward_mode", "finite_differences"]
GAUSS_NEWTON_METHODS: tuple[str, ...] = ("double_vjp", "forward_mode", "finite_differences")
"""How the derivative of the outputs along a vector can be computed, in the order in which ``"auto"`` tries them."""

Outputs = Callable[[], Tensor]
"""Computes the outputs of a model for one batch, from the live parameters."""

LossOfOutputs = Callable[[Tensor], Tensor]
"""Computes the scalar loss, averaged over the samples of a batch, from its outputs."""

JacobianProduct = Callable[[Tensor], Tensor]


class GaussNewtonOperator(ParameterOperator):
    """The generalised Gauss-Newton matrix at the parameters as they are; made by `gauss_newton_operator`."""


def gauss_newton_operator(
    outputs: Outputs | Sequence[Outputs],
    loss: LossOfOutputs | Sequence[LossOfOutputs],
    parameters: Mapping[str, Tensor],
    *,
    method: GaussNewtonMethod = "auto",
    samples: int | Sequence[int] = 1,
    module: nn.Module | None = None,
    reduce: Reduce | None = None,
    step: float | None = None,
) -> GaussNewtonOperator:
    """Make the generalised Gauss-Newton matrix of a loss an operator on flat vectors.

    ``G = J' B J`` with J the Jacobian of the outputs by the parameters and B the Hessian of the loss by the outputs.
    It is positive semi-definite where the loss is convex in the outputs, and equals the Hessian where the outputs are
    linear in the parameters. A product is J v, B (J v) by a double pass through the loss alone, and one pass back; by
    the last two ways of the following, the model needs no double backward. J v comes by ``double_vjp`` (twice
    backwards, over a graph that is recorded once), by ``forward_mode`` (dual numbers through ``module``; less memory)
    or by ``finite_differences`` of the outputs, two passes forward; ``"auto"`` takes the first that works.

    Source: Schraudolph 2002, "Fast curvature matrix-vector products for second-order gradient descent".

    Args:
        outputs: The model's outputs for one batch, one tensor of any shape; or one closure a batch.
        loss: The mean loss of a batch from its outputs, twice differentiable; one for all batches, or one a batch.
        parameters: By name; frozen ones have no place in the vectors.
        method: One of `GAUSS_NEWTON_METHODS`, or ``"auto"``.
        samples: How many samples each batch has.
        module: The module that ``outputs`` calls, for ``forward_mode``.
        reduce: Sums a flat tensor over ranks: called once here and once a product, on every rank.
        step: The relative step of ``finite_differences``; by default the cube root of the rounding unit.

    Returns:
        The operator; its graphs live until it is closed.

    Raises:
        LossCurvatureError: If an argument is not accepted, or the outputs depend on no parameter.
        NonFiniteCurvatureError: If the loss or its gradient is NaN or infinite.

    Example:
        >>> weight = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> with gauss_newton_operator(lambda: weight**2, lambda z: z.square().sum(), {"weight": weight}) as matrix:
        ...     matrix(torch.tensor([1.0, 1.0])).tolist()  # (2 w) * 2 * (2 w)
        [8.0, 32.0]
    """
    methods = methods_to_try(method, module, GAUSS_NEWTON_METHODS, "forward_mode")
    closures, counts = batches_of(outputs, samples)
    losses = list(loss) if isinstance(loss, Sequence) else [loss] * len(closures)
    if len(losses) != len(closures):
        raise LossCurvatureError(
            f"{len(closures)} closures for outputs came with {len(losses)} losses. Give one loss for all, or one each."
        )
    layout = ParameterLayout(parameters)
    makers = [
        partial(_BatchGaussNewton, each, of_outputs, layout, module, step)
        for each, of_outputs in zip(closures, losses, strict=True)
    ]
    return GaussNewtonOperator(makers, layout, counts, methods=methods, reduce=reduce)


class _BatchGaussNewton:
    """The matrix of one batch: the graphs of its outputs and of the gradient of the loss by them are kept."""

    note = ""

    def __init__(
        self,
        outputs: Outputs,
        loss: LossOfOutputs,
        layout: ParameterLayout,
        module: nn.Module | None,
        step: float | None,
        method: str,
    ) -> None:
        self._layout = layout
        self._tensors = list(layout.tensors.values())
        self._outputs = _evaluate_outputs(outputs)
        leaf = self._outputs.detach().requires_grad_()
        value = evaluate_loss(lambda: loss(leaf))
        self._leaf, self._loss = leaf, value.detach()
        with torch.inference_mode(False), torch.enable_grad(), without_autocast(layout):
            (slope,) = torch.autograd.grad(value, leaf, create_graph=True, allow_unused=True)
        if slope is None:
            raise LossCurvatureError("The loss does not depend on the outputs. Give loss(outputs) a use for them.")
        self._slope = slope
        self.doubtful = method == "double_vjp" and has_custom_function(kinds_of(self._outputs))
        self._along = self._jacobian_product(method, outputs, module, step)

    def first_order(self) -> Tensor:
        """Return the gradient and, as its last element, the loss."""
        flat = self._back(self._slope.detach())
        return torch.cat([flat, self._loss.reshape(1).to(flat)])

    def product(self, vector: Tensor) -> Tensor:
        """Return ``J' B J v``."""
        if not self._slope.requires_grad:  # the loss is linear in the outputs
            return torch.zeros_like(vector)
        along = self._along(vector)
        with torch.inference_mode(False), without_autocast(self._layout):
            (bent,) = torch.autograd.grad(self._slope, self._leaf, along, retain_graph=True)
        return self._back(bent)

    def _back(self, direction: Tensor) -> Tensor:
        """Return ``J' u``."""
        with torch.inference_mode(False), without_autocast(self._layout):
            product = torch.autograd.grad(self._outputs, self._tensors, direction, retain_graph=True, allow_unused=True)
        return self._layout.flatten(product)

    def _jacobian_product(
        self, method: str, outputs: Outputs, module: nn.Module | None, step: float | None
    ) -> JacobianProduct:
        """Return the function ``v -> J v``."""
        if method == "forward_mode" and module is not None:
            return partial(_by_forward_mode, outputs, self._layout, module)
        if method == "double_vjp":
            return _by_double_vjp(self._outputs, self._layout)
        return partial(_by_finite_differences, outputs, self._layout, step or relative_step(self._layout))


def _by_forward_mode(outputs: Outputs, layout: ParameterLayout, module: nn.Module, vector: Tensor) -> Tensor:
    """Return J v as the tangent of the outputs."""
    with torch.inference_mode(False), torch.no_grad(), dual_parameters(module, layout, vector):
        output = outputs()
        tangent = tangent_of(output)
    return torch.zeros_like(output) if tangent is None else tangent


def _by_double_vjp(outputs: Tensor, layout: ParameterLayout) -> JacobianProduct:
    """Return ``v -> J v`` as the derivative of the linear map ``u -> J' u``, whose graph is kept."""
    tensors = list(layout.tensors.values())
    with torch.inference_mode(False), torch.enable_grad(), without_autocast(layout):
        direction = torch.zeros_like(outputs).requires_grad_()
        back = torch.autograd.grad(outputs, tensors, direction, create_graph=True, allow_unused=True)
    check_differentiable(kinds_of(*back))
    used = [(number, piece) for number, piece in enumerate(back) if piece is not None and piece.requires_grad]

    def along(vector: Tensor) -> Tensor:
        pieces = layout.split(vector)
        with torch.inference_mode(False), without_autocast(layout):
            (product,) = torch.autograd.grad(
                [piece for _, piece in used], direction, [pieces[number] for number, _ in used], retain_graph=True
            )
        return product

    return along


def _by_finite_differences(outputs: Outputs, layout: ParameterLayout, step: float, vector: Tensor) -> Tensor:
    """Return J v as a central difference of the outputs."""
    h, offset = scaled_offset(layout, vector, step)
    with torch.no_grad(), displaced(layout) as displacement:
        displacement.move(offset)
        ahead = outputs()
        displacement.move(-offset)
        behind = outputs()
    return (ahead - behind) / (2 * h)


def _evaluate_outputs(outputs: Outputs) -> Tensor:
    """Call a closure for outputs with gradients enabled."""
    with torch.inference_mode(False), torch.enable_grad():
        result = outputs()
    if not isinstance(result, Tensor) or not result.is_floating_point():
        raise LossCurvatureError(
            f"The closure for the outputs returned {type(result).__name__}. Accepted is one floating-point tensor: "
            "what the loss is computed from."
        )
    if not result.requires_grad:
        raise LossCurvatureError(
            "The outputs depend on no parameter. The closure must call the model, without detach() or no_grad()."
        )
    return result
