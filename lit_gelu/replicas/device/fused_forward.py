"""`FusedForward`: the forward pass of the tasks' nets on a device, where the end of each hidden layer is one kernel."""

import copy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Self

import torch
from torch import Tensor

from lit_gelu.replicas.device.kernel_launches import has_values, noise_free, values_of
from lit_gelu.replicas.device.layer_ends import LayerEnd, number_of
from lit_gelu.replicas.forward.keyed_rules import KeyedDropoutRule
from lit_gelu.replicas.forward.rules import ActivationRule, LinearRule
from lit_gelu.replicas.forward.stacked_forward import StackedForward


class FusedForward:
    """The forward pass with dropout, and for some replicas beside it the one without, which has the first product too.

    Args:
        forward: What it computes.
        ends: Those of the hidden layers.
        output: The last layer.
        is_noise_free: Which replicas' losses are to be measured with noise off, too, bool ``[replicas]``.
    """

    def __init__(
        self, forward: StackedForward, ends: list[LayerEnd], output: LinearRule, is_noise_free: Tensor
    ) -> None:
        self.forward, self.ends, self.output = forward, ends, output
        wanted = is_noise_free.nonzero().flatten().tolist()
        self.part = slice(wanted[0], wanted[-1] + 1) if wanted else None  # the shortest stretch that has all of them
        self.is_noise_free = is_noise_free[self.part] if wanted else None

    @classmethod
    def of(cls, forward: StackedForward, is_noise_free: Tensor) -> Self | None:
        """Return it, or ``None`` if the nets have other layers than linear ones with activations that kernels know."""
        rules, ends = list(forward.rules), []
        while len(rules) > 1:
            linear, activation = rules[:2]
            dropout = rules[2] if len(rules) > 2 and isinstance(rules[2], KeyedDropoutRule) else None
            if not isinstance(linear, LinearRule) or not isinstance(activation, ActivationRule):
                return None
            if linear.bias is None or not activation.written or None in map(number_of, activation.modules):
                return None
            ends.append(LayerEnd(linear, activation, dropout))
            rules = rules[2 if dropout is None else 3 :]
        last = rules[0] if rules else None
        return cls(forward, ends, last, is_noise_free) if isinstance(last, LinearRule) and ends else None

    def frozen(self) -> Self:
        """Return the same pass with copies of the parameters as they are now."""
        frozen = copy.copy(self)
        frozen.ends, frozen.output = [end.with_linear(_copied(end.linear)) for end in self.ends], _copied(self.output)
        return frozen

    def parameters(self) -> Iterator[Tensor]:
        """Return weights and biases."""
        for linear in [*(end.linear for end in self.ends), self.output]:
            yield from (tensor for tensor in (linear.weight, linear.bias) if tensor is not None)

    def losses(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return every replica's loss with dropout, and what is logged: that without it where it is wanted."""
        inputs, labels = batch
        flat = outputs = inputs.flatten(2)
        free = flat if self.part is None else flat[self.part]
        for place, end in enumerate(self.ends):
            product = end.linear.product(outputs)
            if self.part is not None:
                with torch.no_grad():
                    own = end.linear.product(free, self.part) if place else product[self.part]
                    free = end(own, self.part, drops=False)
            outputs = end(product, drops=True)
        losses = self.forward.loss(self.output(outputs), flat, labels)
        return losses, self._logged(losses.detach(), free, flat, labels)

    @torch.no_grad()
    def _logged(self, losses: Tensor, free: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return losses, those that are wanted without noise measured behind the last hidden layer."""
        if self.part is None or self.is_noise_free is None:
            return losses
        measured = self.forward.loss(self.output(free, self.part), inputs[self.part], labels[self.part])
        logged = losses.clone()
        logged[self.part] = torch.where(self.is_noise_free, measured, losses[self.part])
        return logged

    @torch.no_grad()
    def noise_free_outputs(self, inputs: Tensor, part: Tensor | None = None) -> Tensor:
        """Return the outputs without noise, ``[replicas, samples, ...]``, of flat inputs that all replicas share.

        Args:
            inputs: ``[samples, features]``.
            part: Numbers of the replicas that are asked for; ``None`` means all.
        """
        return self.output(self._hidden(inputs, part), part)

    @torch.no_grad()
    def noise_free_values(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return every sample's cross-entropy, and 1 where another class is predicted, ``[replicas, samples]`` each.

        Args:
            inputs: As those of `noise_free_outputs`.
            labels: ``[samples]``, each one a class.

        Returns:
            Them, or ``None`` where no kernel computes them.
        """
        return values_of(self.output, self._hidden(inputs, None), labels) if has_values(self.output) else None

    def _hidden(self, inputs: Tensor, part: Tensor | None) -> Tensor:
        """Return the last hidden layer's outputs."""
        for end in self.ends:
            inputs = noise_free(end, inputs, part)
        return inputs


def _copied(linear: LinearRule) -> LinearRule:
    held: Any = SimpleNamespace(weight=linear.weight.detach().clone())
    if linear.bias is not None:
        held.bias = linear.bias.detach().clone()
    return LinearRule(held)
