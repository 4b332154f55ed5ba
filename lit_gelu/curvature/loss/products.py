"""Three ways to multiply the Hessian of one batch's loss with a vector."""

import math
from contextlib import nullcontext
from typing import Protocol

import torch
from torch import Tensor, nn

from lit_gelu.curvature.loss.dual_numbers import dual_parameters, tangent_of
from lit_gelu.curvature.loss.evaluation import (
    Closure,
    check_differentiable,
    differentiate,
    evaluate_loss,
    has_custom_function,
    without_autocast,
)
from lit_gelu.curvature.loss.layout import ParameterLayout, displaced
from lit_gelu.curvature.loss.mish import MISH_NOTE, ComposedMish, evaluate_without_native_mish, has_native_mish


class BatchMatrix(Protocol):
    """A matrix of second derivatives of one batch's loss, as an operator."""

    note: str
    """What had to be changed to differentiate twice; empty if nothing."""

    @property
    def doubtful(self) -> bool:
        """Whether a share of the product may be missing without an error."""
        ...

    def first_order(self) -> Tensor:
        """Return the gradient and, as its last element, the loss."""
        ...

    def product(self, vector: Tensor) -> Tensor:
        """Return the product with a vector."""
        ...


class ReverseOverReverse:
    """H v as the gradient of ``g . v``, over a graph of the gradient g that is recorded once and used again.

    Source: Pearlmutter 1994, "Fast exact multiplication by the Hessian", in reverse mode.

    A product costs about two gradients, and the graph two to three times the memory of a training step's.

    Args:
        closure: The loss of the batch.
        layout: The parameters.
    """

    def __init__(self, closure: Closure, layout: ParameterLayout) -> None:
        self._layout = layout
        loss, replaced = evaluate_without_native_mish(closure)
        self.note = MISH_NOTE if replaced else ""
        with torch.inference_mode(False), torch.enable_grad():
            gradient = differentiate(loss, layout, create_graph=True)
        check_differentiable(*gradient)
        self._loss = loss
        self._first_order = _join(layout, gradient, loss)
        self._curved = [
            (number, piece) for number, piece in enumerate(gradient) if piece is not None and piece.requires_grad
        ]

    @property
    def doubtful(self) -> bool:
        """Whether a custom function, which can lack its second derivative without an error, is in the loss."""
        return has_custom_function(self._loss)

    def first_order(self) -> Tensor:
        """Return the gradient and, as its last element, the loss."""
        return self._first_order

    def product(self, vector: Tensor) -> Tensor:
        """Return ``H v``."""
        if not self._curved:  # the loss is linear in the parameters
            return torch.zeros_like(vector)
        pieces = self._layout.split(vector)
        with torch.inference_mode(False), without_autocast(self._layout):
            product = torch.autograd.grad(
                [piece for _, piece in self._curved],
                list(self._layout.tensors.values()),
                grad_outputs=[pieces[number] for number, _ in self._curved],
                retain_graph=True,
                allow_unused=True,
            )
        return self._layout.flatten(product)


class ForwardOverReverse:
    """H v as the derivative of the gradient along v, by dual numbers through the pass back; nothing is kept.

    Source: Pearlmutter 1994, "Fast exact multiplication by the Hessian", equation 2.

    Torch lacks the forward derivative of some passes back; in 2.15 that of `mse_loss`, which ``(z -
    y).square().mean()`` does not need.

    Args:
        closure: The loss of the batch; it calls ``module``.
        layout: The parameters.
        module: Owns the parameters: they are replaced by dual tensors during a product.
    """

    def __init__(self, closure: Closure, layout: ParameterLayout, module: nn.Module) -> None:
        self.note = ""
        self.doubtful = False
        self._closure = closure
        self._layout = layout
        self._module = module
        self._create_graph = False
        self._composed_mish = False

    def first_order(self) -> Tensor:
        """Return the gradient and, as its last element, the loss."""
        return _first_order(self._closure, self._layout)

    def product(self, vector: Tensor) -> Tensor:
        """Return ``H v``."""
        try:
            return self._product(vector)
        except NotImplementedError:
            # Some passes back (of SiLU, of Mish) have a derivative only in the form recorded for a third pass.
            if self._create_graph:
                raise
            self._create_graph = self._composed_mish = True
            self.note = MISH_NOTE if has_native_mish(evaluate_loss(self._closure)) else ""
            return self._product(vector)

    def _product(self, vector: Tensor) -> Tensor:
        """Return ``H v``, differentiating the pass back as the two switches say."""
        parameters = dual_parameters(self._module, self._layout, vector)
        with torch.inference_mode(False), torch.enable_grad(), parameters as duals:
            with ComposedMish() if self._composed_mish else nullcontext():
                loss = evaluate_loss(self._closure)
            with without_autocast(self._layout):
                gradient = torch.autograd.grad(loss, duals, create_graph=self._create_graph, allow_unused=True)
            tangents = [None if piece is None else tangent_of(piece) for piece in gradient]
            return self._layout.flatten([None if piece is None else piece.detach() for piece in tangents])


class FiniteDifferences:
    """H v as the central difference of two gradients: ``(g(theta + h v) - g(theta - h v)) / (2 h)``.

    The step is relative to the parameters, ``h = c ||theta|| / ||v||``, with c the cube root of the rounding unit
    (4.9e-3 in float32, 6.1e-6 in float64), which balances the rounding of g against the third derivative. A fixed
    step would lose accuracy as vectors grow longer.

    Source: Nocedal and Wright 2006, "Numerical Optimization", section 8.1, for the cube root.

    Args:
        closure: The loss of the batch.
        layout: The parameters: moved during a product, and put back bit by bit.
        step: c; by default that of the coarsest type among the parameters.
    """

    def __init__(self, closure: Closure, layout: ParameterLayout, step: float | None = None) -> None:
        self.note = ""
        self.doubtful = False
        self._closure = closure
        self._layout = layout
        self._step = step or relative_step(layout)

    def first_order(self) -> Tensor:
        """Return the gradient and, as its last element, the loss."""
        return _first_order(self._closure, self._layout)

    def product(self, vector: Tensor) -> Tensor:
        """Return ``H v``."""
        h, offset = scaled_offset(self._layout, vector, self._step)
        with displaced(self._layout) as displacement:
            displacement.move(offset)
            ahead = _first_order(self._closure, self._layout)[:-1]
            displacement.move(offset.neg_())
            behind = _first_order(self._closure, self._layout)[:-1]
        return ahead.sub_(behind).div_(2 * h)


def relative_step(layout: ParameterLayout) -> float:
    """Return the cube root of the rounding unit of the coarsest type among the parameters.

    Args:
        layout: The parameters.

    Returns:
        4.9e-3 in float32, 6.1e-6 in float64, 0.1 in float16 and 0.2 in bfloat16.
    """
    return math.cbrt(max(torch.finfo(tensor.dtype).eps for tensor in layout.tensors.values()))


def scaled_offset(layout: ParameterLayout, vector: Tensor, step: float) -> tuple[Tensor, Tensor]:
    """Scale a vector to ``step`` times the length of the parameters, on the device.

    Args:
        layout: The parameters.
        vector: The direction, shape ``[size]``.
        step: The length of the offset in units of ``||theta||``; of 1 if all parameters are zero.

    Returns:
        ``h = step ||theta|| / ||v||`` (no dimensions) and ``h v``; of the zero vector, 1 and zeros.
    """
    length, scale = vector.norm(), layout.values().norm()
    scale = torch.where(scale > 0, scale, 1)
    h = torch.where(length > 0, step * scale / torch.where(length > 0, length, 1), 1)
    return h, vector * h


def _join(layout: ParameterLayout, gradient: list[Tensor | None], loss: Tensor) -> Tensor:
    """Return gradient and loss in one vector, without graph."""
    pieces = layout.pieces([None if piece is None else piece.detach() for piece in gradient])
    return torch.cat([*pieces, loss.detach().reshape(1).to(pieces[0])])


def _first_order(closure: Closure, layout: ParameterLayout) -> Tensor:
    """Return gradient and loss of a batch in one vector."""
    loss = evaluate_loss(closure)
    return _join(layout, differentiate(loss, layout), loss)
