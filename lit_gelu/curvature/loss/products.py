"""Three ways to multiply the Hessian of one batch's loss with a vector."""

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from lit_gelu.activations.families import COMPOSED
from lit_gelu.curvature.loss.composed import SQUARED_ERROR, ComposedFunctions
from lit_gelu.curvature.loss.evaluation import (
    Closure,
    differentiate,
    evaluate_loss,
    loss_after_gradient,
    without_autocast,
)
from lit_gelu.curvature.loss.graph_walk import (
    Kinds,
    check_checkpoints,
    check_differentiable,
    has_custom_function,
    kinds_of,
)
from lit_gelu.curvature.loss.layout import Displacement, ParameterLayout, displaced

_COMPOSED = {function: other for each in COMPOSED for function, other in each.functions.items()}


@contextmanager
def dual_parameters(module: nn.Module, layout: ParameterLayout, vector: Tensor) -> Iterator[list[Tensor]]:
    """Let a module compute with dual numbers: its parameters plus an infinitesimal step along a vector."""
    _load_formulas()
    tensors, pieces = list(layout.tensors.values()), layout.split(vector)
    with forward_ad.dual_level():
        duals = [_dual(parameter, piece.contiguous()) for parameter, piece in zip(tensors, pieces, strict=True)]
        with replaced_parameters(module, dict(zip(tensors, duals, strict=True))):
            yield duals


def tangent_of(value: Tensor) -> Tensor | None:
    """Return the infinitesimal part of a tensor, inside `dual_parameters`; ``None`` if it depends on none of these."""
    return cast("Tensor | None", forward_ad.unpack_dual(value).tangent)  # type: ignore[no-untyped-call]


@contextmanager
def replaced_parameters(module: nn.Module, replacements: Mapping[Tensor, Tensor]) -> Iterator[None]:
    """Let a module and its parts use other tensors for some of their parameters, wherever these occur."""
    places = [
        (part, name, parameter)
        for part in module.modules()
        for name, parameter in part._parameters.items()
        if parameter is not None and parameter in replacements
    ]
    try:
        for part, name, parameter in places:
            part._parameters[name] = replacements[parameter]  # type: ignore[assignment]
        yield
    finally:
        for part, name, parameter in places:
            part._parameters[name] = parameter


@cache
def _load_formulas() -> None:
    """Make torch load its table of forward derivatives, which it compiles with a function that it deprecates."""
    with warnings.catch_warnings(), forward_ad.dual_level():
        warnings.filterwarnings("ignore", message=".*torch.jit.script.*", category=FutureWarning)
        warnings.filterwarnings("ignore", message=".*torch.jit.script.*", category=DeprecationWarning)
        _dual(torch.zeros(1), torch.zeros(1))


def _dual(value: Tensor, tangent: Tensor) -> Tensor:
    """Return value and tangent as one dual tensor."""
    return cast("Tensor", forward_ad.make_dual(value, tangent))  # type: ignore[no-untyped-call]


_TOO_FAR = 3.0
"""How many times the change of the gradient that was aimed at is still taken: a product anew costs more."""

_SHORTEST = 20.0
"""In units of the rounding unit: with shorter steps, the rounding of the parameters themselves is seen."""


class FiniteDifferences:
    """H v as the difference of two gradients: ``(g(theta + h v) - g(theta - h v)) / (2 h)``."""

    # With the cube root c of the rounding unit (4.9e-3 in float32, 6.1e-6 in float64), which balances the rounding of g
    # against the third derivative, h is such that the gradient changes by c of its length, ``h ||H v|| = c ||g||``, and
    # the parameters by no more than c of theirs, ``h ||v|| <= c ||theta||``. The second alone would not do: along the
    # steepest eigenvectors of a trained net such a step leads out of the valley.
    #
    # One-sided, ``(g(theta + h v) - g(theta)) / h`` with ten times the square root of the rounding unit as c, costs one
    # gradient instead of two. Its error is of the order of c.
    #
    # Where the gradient jumps (ReLU, max pooling), the differences hold the jumps within a step, which a second
    # derivative has not: they are right for smooth losses only.
    #
    # ``||H v||`` is not known before. It is taken to be that of the largest product so far (``largest`` at first);
    # where a step turns out to be too long, the product is computed again.
    #
    # Source: Nocedal and Wright 2006, "Numerical Optimization", section 8.1, for the cube and the square root.

    def __init__(
        self,
        closure: Closure,
        layout: ParameterLayout,
        step: float | None = None,
        *,
        one_sided: bool = False,
        largest: float | None = None,
    ) -> None:
        self.note = ""
        self.doubtful = False
        self._closure = closure
        self._layout = layout
        self._one_sided = one_sided
        self._step = step or (one_sided_step(layout) if one_sided else relative_step(layout))
        self._bend = abs(largest or 0.0)
        self._first_order: Tensor | None = None
        self._lengths: list[float] = []

    def first_order(self) -> Tensor:
        """Return the gradient and, as its last element, the loss."""
        if self._first_order is None:
            self._first_order = loss_after_gradient(self._closure, self._layout)
        return self._first_order

    def product(self, vector: Tensor) -> Tensor:
        """Return ``H v``."""
        gradient = self.first_order()[:-1]
        norms = [vector.norm()] if self._lengths else [vector.norm(), self._layout.values().norm(), gradient.norm()]
        length, *others = torch.stack(norms).tolist()  # in one copy: the host waits once
        self._lengths = self._lengths or others  # neither parameters nor gradient differ at the next product
        scale, slope = self._lengths
        if length == 0:
            return torch.zeros_like(vector)
        longest, shortest = (share * (scale or 1.0) for share in (self._step, _SHORTEST * _unit(self._layout)))
        aim = self._step * slope
        with displaced(self._layout) as displacement:
            while True:
                reach = min(longest, max(shortest, aim / self._bend)) if self._bend else longest
                product = self._difference(displacement, gradient, vector, reach / length)
                bend = float(product.norm()) / length
                self._bend = max(self._bend, bend)
                if reach <= shortest or not bend * reach > _TOO_FAR * aim:
                    return product

    def _difference(self, displacement: Displacement, gradient: Tensor, vector: Tensor, h: float) -> Tensor:
        """Return the quotient for a step."""
        displacement.move(vector, h)
        ahead = loss_after_gradient(self._closure, self._layout)[:-1]
        if self._one_sided:
            return ahead.sub_(gradient).div_(h)
        displacement.move(vector, -h)
        behind = loss_after_gradient(self._closure, self._layout)[:-1]
        return ahead.sub_(behind).div_(2 * h)


def one_sided_step(layout: ParameterLayout) -> float:
    """Return ten times the root of the coarsest rounding unit, at most 0.2: 3.5e-3 in float32, 1.5e-7 in float64."""
    return min(0.2, 10 * math.sqrt(_unit(layout)))


def relative_step(layout: ParameterLayout) -> float:
    """Return the cube root of the coarsest rounding unit: 4.9e-3 in float32, 6.1e-6 in float64, 0.2 in bfloat16."""
    return math.cbrt(_unit(layout))


def scaled_offset(layout: ParameterLayout, vector: Tensor, step: float) -> tuple[Tensor, Tensor]:
    """Return ``h = step ||theta|| / ||v||`` and ``h v``, on the device; 1 and zeros of the zero vector."""
    length, scale = vector.norm(), layout.values().norm()
    scale = torch.where(scale > 0, scale, 1)  # all parameters may be zero
    h = torch.where(length > 0, step * scale / torch.where(length > 0, length, 1), 1)
    return h, vector * h


def _unit(layout: ParameterLayout) -> float:
    """Return the rounding unit of the coarsest type among the parameters."""
    return max(torch.finfo(tensor.dtype).eps for tensor in layout.tensors.values())


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
    """H v as the gradient of ``g . v``, over a graph of the gradient g that is recorded once and used again."""

    # Source: Pearlmutter 1994, "Fast exact multiplication by the Hessian", in reverse mode.
    #
    # A product costs about two gradients, and the graph two to three times the memory of a training step's.

    def __init__(self, closure: Closure, layout: ParameterLayout) -> None:
        self._layout = layout
        loss = evaluate_loss(closure)
        kinds = kinds_of(loss)
        check_checkpoints(kinds)
        self.doubtful = has_custom_function(kinds)  # such a one can lack its second derivative without an error
        self.note = _note_on(kinds)
        if self.note:
            with ComposedFunctions(_COMPOSED):
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
    """H v as the derivative of the gradient along v, by dual numbers through the pass back; nothing is kept."""

    # Source: Pearlmutter 1994, "Fast exact multiplication by the Hessian", equation 2.
    #
    # Torch lacks the forward derivative of some passes back: that of `mse_loss`, in whose place ``(z - y).square()`` is
    # computed; in 2.15 those of `huber_loss` and `soft_margin_loss`, where this method is refused.

    def __init__(self, closure: Closure, layout: ParameterLayout, module: nn.Module) -> None:
        self.note = ""
        self.doubtful = False
        self._closure = closure
        self._layout = layout
        self._module = module
        self._create_graph = False

    def first_order(self) -> Tensor:
        """Return the gradient and, as its last element, the loss."""
        return loss_after_gradient(self._closure, self._layout)

    def product(self, vector: Tensor) -> Tensor:
        """Return ``H v``."""
        try:
            return self._product(vector)
        except NotImplementedError:
            # Some passes back (that of SiLU) have a derivative only in the form recorded for a third pass.
            if self._create_graph:
                raise
            self._create_graph = True
            self.note = _note_on(kinds_of(evaluate_loss(self._closure)))
            return self._product(vector)

    def _product(self, vector: Tensor) -> Tensor:
        """Return ``H v``, with or without the graph of the pass back."""
        functions = SQUARED_ERROR | _COMPOSED if self._create_graph else SQUARED_ERROR
        parameters = dual_parameters(self._module, self._layout, vector)
        with torch.inference_mode(False), torch.enable_grad(), parameters as duals:
            with ComposedFunctions(functions):
                loss = evaluate_loss(self._closure)
            with without_autocast(self._layout):
                gradient = torch.autograd.grad(loss, duals, create_graph=self._create_graph, allow_unused=True)
            tangents = [None if piece is None else tangent_of(piece) for piece in gradient]
            return self._layout.flatten([None if piece is None else piece.detach() for piece in tangents])


def _note_on(kinds: Kinds) -> str:
    """Return what to tell of the functions in a graph in whose place others are computed."""
    return "; ".join(each.note for each in COMPOSED if any(kind.__name__.startswith(each.node) for kind in kinds))
