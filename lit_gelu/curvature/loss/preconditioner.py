"""What an optimizer does to a gradient, as a diagonal matrix, and the sharpness from which on its steps diverge.

Near a minimum the loss is a quadratic form with the Hessian H. An optimizer with a diagonal preconditioner P, momentum
and the learning rate h takes

    m' = b m + k g,    theta' = theta - h P^-1 (c g + d m')

steps there, with the gradient g. They stay bounded along an eigenvector of ``P^-1/2 H P^-1/2`` as long as its
eigenvalue is below ``2 (1 + b) / (h (c (1 + b) + d k))``: 2 / h of gradient descent, ``(2 + 2 b) / ((1 - b) h)`` of
Adam, 38 / h at its default b = 0.9. Training with a fixed P settles at that limit, the edge of stability.

Source: Cohen et al. 2022, "Adaptive gradient methods at the edge of stability" (arXiv 2207.14484); the limit from the
root -1 of the recurrence's characteristic polynomial.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, NAdam, Optimizer, RMSprop

from lit_gelu.curvature.loss.linear_operator import LinearOperator, agreed_on
from lit_gelu.curvature.loss.parameters import ParameterLayout
from lit_gelu.errors import UnsupportedRunError


@dataclass(frozen=True)
class Momentum:
    """The numbers of one step ``m' = decay m + share g``, ``theta' = theta - h P^-1 (direct g + through m')``."""

    decay: float = 0.0
    share: float = 1.0
    direct: float = 0.0
    through: float = 1.0

    @property
    def limit(self) -> float:
        """The sharpness times the learning rate from which on steps diverge."""
        return 2 * (1 + self.decay) / (self.direct * (1 + self.decay) + self.through * self.share)


@dataclass(frozen=True, eq=False)
class Preconditioner:
    """A diagonal preconditioner over the parameters of a layout.

    Attributes:
        inverse_root: ``P^-1/2``, shape ``[size]``; of a group with a smaller learning rate than the largest one, by the
            root of their ratio smaller.
        decay: The weight decay that is a part of the gradient, shape ``[size]``: it is added to the Hessian's diagonal.
        limit: The sharpness from which on steps diverge, with the largest learning rate.
        learning_rate: That rate.
    """

    inverse_root: Tensor
    decay: Tensor
    limit: float
    learning_rate: float

    @property
    def is_gradient_descent(self) -> bool:
        """Whether steps are the gradient times the learning rate: P is 1, and there is no momentum."""
        return self.limit * self.learning_rate == 2 and bool((self.inverse_root == 1).all())


class PreconditionedOperator:
    """``P^-1/2 (H + decay) P^-1/2`` as a linear operator.

    Args:
        hessian: H.
        preconditioner: P, of the same parameters.
    """

    def __init__(self, hessian: LinearOperator, preconditioner: Preconditioner) -> None:
        self.size, self.dtype, self.device = hessian.size, hessian.dtype, hessian.device
        self._hessian, self._preconditioner = hessian, preconditioner
        self.agreed = agreed_on(hessian)

    def __call__(self, vector: Tensor) -> Tensor:
        """Return the product with a vector."""
        scaled = self._preconditioner.inverse_root * vector
        return self._hessian(scaled).add_(self._preconditioner.decay * scaled).mul_(self._preconditioner.inverse_root)


def preconditioner_of(optimizers: Iterable[Optimizer], layout: ParameterLayout) -> Preconditioner | None:
    """Return what some optimizers divide gradients by now, and the sharpness from which on they diverge.

    Args:
        optimizers: `torch.optim.SGD`, `Adam`, `AdamW`, `NAdam` and `RMSprop`; together they train all parameters.
        layout: Of the parameters.

    Returns:
        The preconditioner; ``None`` before the first step, and after steps that a gradient scaler left out.

    Raises:
        UnsupportedRunError: If an optimizer is of another class, leaves out a parameter, has the rate 0, or if groups
            have different momenta.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> optimizer = torch.optim.Adam([weight], lr=0.01)
        >>> weight.grad = torch.full((1,), 2.0)
        >>> optimizer.step()
        >>> preconditioner = preconditioner_of([optimizer], ParameterLayout({"weight": weight}))
        >>> round(preconditioner.limit), round(float(preconditioner.inverse_root**-2), 4)  # 38 / rate; 0.1 |g|
        (3800, 0.2)
    """
    groups = [(optimizer, group) for optimizer in optimizers for group in optimizer.param_groups]
    rates = [float(group["lr"]) for _, group in groups]
    largest = max(rates, default=0.0)
    diagonals: dict[int, Tensor] = {}
    decays: dict[int, float] = {}
    limits: set[float] = set()
    for (optimizer, group), rate in zip(groups, rates, strict=True):
        rule = _RULES.get(type(optimizer))
        if rule is None or rate <= 0:
            raise UnsupportedRunError(
                f"preconditioned_sharpness is not known for {type(optimizer).__name__} with the rate {rate:g}. It is "
                f"for {', '.join(cls.__name__ for cls in _RULES)}, with a rate above 0."
            )
        is_decoupled = isinstance(optimizer, AdamW) or bool(group.get("decoupled_weight_decay"))
        decay = float(group["weight_decay"])
        for parameter in group["params"]:
            if id(parameter) not in {id(tensor) for tensor in layout.tensors.values()}:
                continue
            state = optimizer.state.get(parameter, {})
            if not state and not isinstance(optimizer, SGD):
                return None
            momentum, diagonal = rule(group, state)
            diagonals[id(parameter)] = torch.ones_like(parameter) * (diagonal * (largest / rate))
            decays[id(parameter)] = 0.0 if is_decoupled else decay
            # Decoupled decay shortens the parameters by itself: theta' = (1 - h decay) theta - ...
            limits.add(momentum.limit / largest * (1 - largest * decay / 2 if is_decoupled else 1))
    if rest := [name for name, tensor in layout.tensors.items() if id(tensor) not in diagonals]:
        raise UnsupportedRunError(f"preconditioned_sharpness is not known: no optimizer trains {', '.join(rest[:3])}.")
    if max(limits) > 1.01 * min(limits):
        raise UnsupportedRunError(
            "preconditioned_sharpness is not known where groups of parameters have different momenta: each has a limit "
            f"of its own, from {min(limits):.4g} to {max(limits):.4g}."
        )
    tensors = [diagonals[id(tensor)] for tensor in layout.tensors.values()]
    decay_rows = [torch.full_like(tensor, decays[id(tensor)]) for tensor in layout.tensors.values()]
    return Preconditioner(layout.flatten(tensors).rsqrt(), layout.flatten(decay_rows), min(limits), largest)


def _of_sgd(group: Mapping[str, Any], _: Mapping[str, Any]) -> tuple[Momentum, Tensor | float]:
    momentum, share = float(group["momentum"]), 1 - float(group["dampening"])
    kind = Momentum(momentum, share, direct=1.0, through=momentum) if group["nesterov"] else Momentum(momentum, share)
    return kind, 1.0


def _of_adam(group: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[Momentum, Tensor]:
    beta1, beta2 = group["betas"]
    step = float(state["step"])
    second = state["max_exp_avg_sq"] if group["amsgrad"] else state["exp_avg_sq"]
    diagonal = (second / (1 - beta2**step)).sqrt() + group["eps"]
    return Momentum(beta1, 1 - beta1), diagonal * (1 - beta1**step)


def _of_nadam(group: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[Momentum, Tensor]:
    beta1, beta2 = group["betas"]
    step, product = float(state["step"]), float(state["mu_product"])
    now, after = (beta1 * (1 - 0.5 * 0.96 ** (n * group["momentum_decay"])) for n in (step, step + 1))
    diagonal = (state["exp_avg_sq"] / (1 - beta2**step)).sqrt() + group["eps"]
    direct, through = (1 - now) / (1 - product), after / (1 - product * after)
    return Momentum(beta1, 1 - beta1, direct=direct, through=through), diagonal


def _of_rmsprop(group: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[Momentum, Tensor]:
    second = state["square_avg"]
    second = second - state["grad_avg"].square() if group["centered"] else second
    return Momentum(float(group["momentum"])), second.sqrt() + group["eps"]


_RULES: Mapping[type[Optimizer], Callable[..., tuple[Momentum, Any]]] = {
    SGD: _of_sgd,
    Adam: _of_adam,
    AdamW: _of_adam,
    NAdam: _of_nadam,
    RMSprop: _of_rmsprop,
}
