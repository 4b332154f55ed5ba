"""Two exact ways to multiply the Hessian of one batch's loss with a vector."""

from contextlib import nullcontext
from typing import Protocol

import torch
from torch import Tensor, nn

from lit_gelu.curvature.loss.dual_numbers import dual_parameters, tangent_of
from lit_gelu.curvature.loss.evaluation import (
    Closure,
    differentiate,
    evaluate_loss,
    loss_after_gradient,
    without_autocast,
)
from lit_gelu.curvature.loss.graph_walk import (
    check_checkpoints,
    check_differentiable,
    has_custom_function,
    has_native_mish,
    kinds_of,
)
from lit_gelu.curvature.loss.layout import ParameterLayout
from lit_gelu.curvature.loss.mish import MISH_NOTE, ComposedMish
from lit_gelu.curvature.loss.squared_error import ComposedSquaredError


class BatchMatrix(Protocol):
    """A matrix of second derivatives of one batch's loss, as an operator."""

    note: str
    """What had to be changed to differentiate twice; empty if nothing."""

    doubtful: bool
    """Whether a share of the product may be missing without an error."""

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
        loss = evaluate_loss(closure)
        kinds = kinds_of(loss)
        check_checkpoints(kinds)
        self.doubtful = has_custom_function(kinds)  # such a one can lack its second derivative without an error
        self.note = MISH_NOTE if has_native_mish(kinds) else ""
        if self.note:
            with ComposedMish():
                loss = evaluate_loss(closure)
        with torch.inference_mode(False), torch.enable_grad():
            gradient = differentiate(loss, layout, create_graph=True)
            check_differentiable(kinds_of(*gradient))
            # One flat output: of one tensor a parameter, torch checks shape and type in Python at every product.
            self._gradient = layout.flatten(gradient)
        self._tensors = list(layout.tensors.values())
        self._first_order = torch.cat([self._gradient.detach(), loss.detach().reshape(1).to(self._gradient)])

    def first_order(self) -> Tensor:
        """Return the gradient and, as its last element, the loss."""
        return self._first_order

    def product(self, vector: Tensor) -> Tensor:
        """Return ``H v``."""
        if not self._gradient.requires_grad:  # the loss is linear in the parameters
            return torch.zeros_like(vector)
        with torch.inference_mode(False), without_autocast(self._layout):
            product = torch.autograd.grad(
                self._gradient,
                self._tensors,
                grad_outputs=vector,
                retain_graph=True,
                allow_unused=True,
            )
        return self._layout.flatten(product)


class ForwardOverReverse:
    """H v as the derivative of the gradient along v, by dual numbers through the pass back; nothing is kept.

    Source: Pearlmutter 1994, "Fast exact multiplication by the Hessian", equation 2.

    Torch lacks the forward derivative of some passes back: that of `mse_loss`, in whose place ``(z - y).square()`` is
    computed; in 2.15 those of `huber_loss` and `soft_margin_loss`, where this method is refused.

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
        return loss_after_gradient(self._closure, self._layout)

    def product(self, vector: Tensor) -> Tensor:
        """Return ``H v``."""
        try:
            return self._product(vector)
        except NotImplementedError:
            # Some passes back (of SiLU, of Mish) have a derivative only in the form recorded for a third pass.
            if self._create_graph:
                raise
            self._create_graph = self._composed_mish = True
            self.note = MISH_NOTE if has_native_mish(kinds_of(evaluate_loss(self._closure))) else ""
            return self._product(vector)

    def _product(self, vector: Tensor) -> Tensor:
        """Return ``H v``, differentiating the pass back as the two switches say."""
        parameters = dual_parameters(self._module, self._layout, vector)
        with torch.inference_mode(False), torch.enable_grad(), parameters as duals:
            with ComposedSquaredError(), ComposedMish() if self._composed_mish else nullcontext():
                loss = evaluate_loss(self._closure)
            with without_autocast(self._layout):
                gradient = torch.autograd.grad(loss, duals, create_graph=self._create_graph, allow_unused=True)
            tangents = [None if piece is None else tangent_of(piece) for piece in gradient]
            return self._layout.flatten([None if piece is None else piece.detach() for piece in tangents])
