"""The parts of a fully connected net for one member: forward and backward written out, into tensors that are kept."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from lit_gelu.replicas.forward.written_activations import Written
from lit_gelu.replicas.written.factors import Factors
from lit_gelu.replicas.written.joint_products import lying_behind, rows_are_those_alone

Kept = Callable[[str, int], Tensor]  # the tensor of a name, [batch, width]: one for all members


class Part(Protocol):
    """What inputs go through, and gradients back."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs, for a step."""
        ...

    def noise_free(self, inputs: Tensor) -> Tensor:
        """Return the outputs with noise off."""
        ...

    def both(self, inputs: Tensor, noise_free: Tensor) -> tuple[Tensor, Tensor]:
        """Return what `forward` and `noise_free` do."""
        ...

    def backward(self, gradient: Tensor) -> Tensor:
        """Return the gradient of the inputs of the last `forward`; those of parameters are kept on the workspace."""
        ...


class LinearPart:
    """``F.linear`` and the three products and sums of its gradients, as autograd has them.

    Args:
        path: Where it is in the net.
        values: The workspace's parameters by name.
        gradients: Where their gradients go.
        kept: Where the gradient of inputs goes.
        outputs: Where outputs go.
        is_first: Whether nothing asks for the gradient of the inputs.
    """

    def __init__(
        self,
        path: str,
        values: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor],
        kept: Kept,
        outputs: tuple[Tensor, Tensor],
        is_first: bool,
    ) -> None:
        self.weight, self.bias = values[f"{path}.weight"], values.get(f"{path}.bias")
        self.of_weight, self.of_bias = gradients[f"{path}.weight"], gradients.get(f"{path}.bias")
        self.turned = self.weight.t()
        self.gradient: Tensor | None = None
        self.outputs, self.without_noise = outputs
        self.all_outputs = lying_behind(*outputs)
        self.given: tuple[Tensor, Tensor] | None = None
        self.biases, self.all_biases = (
            None if self.bias is None or out is None else self.bias.expand_as(out)
            for out in (self.outputs, self.all_outputs)
        )
        self.of_inputs = None if is_first else kept("gradient of linear", self.weight.shape[1])

    def forward(self, inputs: Tensor) -> Tensor:
        """See `Part`."""
        self.inputs = inputs
        return self._product(inputs, self.outputs)

    def noise_free(self, inputs: Tensor) -> Tensor:
        """See `Part`."""
        return self._product(inputs, self.without_noise)

    def both(self, inputs: Tensor, noise_free: Tensor) -> tuple[Tensor, Tensor]:
        """See `Part`; by one product, where that has the same bits."""
        if self.given is None or inputs is not self.given[0] or noise_free is not self.given[1]:
            self.given, self.joint = (inputs, noise_free), self._joint(inputs, noise_free)
        if self.joint is None:
            return self.forward(inputs), self.noise_free(noise_free)
        self.inputs = inputs
        if self.all_biases is None:
            torch.mm(self.joint, self.turned, out=self.all_outputs)
        else:
            torch.addmm(self.all_biases, self.joint, self.turned, out=self.all_outputs)
        return self.outputs, self.without_noise

    def _joint(self, inputs: Tensor, noise_free: Tensor) -> Tensor | None:
        (width, fed), has_bias = self.weight.shape, self.bias is not None
        known = (len(inputs), fed, width, inputs.dtype, has_bias, torch.get_num_threads())
        return lying_behind(inputs, noise_free) if rows_are_those_alone(*known) else None

    def backward(self, gradient: Tensor) -> Tensor:
        """See `Part`."""
        if gradient is not self.gradient:
            self.gradient, self.transposed = gradient, gradient.t()
        torch.mm(self.transposed, self.inputs, out=self.of_weight)
        if self.of_bias is not None:
            torch.sum(gradient, 0, out=self.of_bias)
        return gradient if self.of_inputs is None else torch.mm(gradient, self.weight, out=self.of_inputs)

    def _product(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        if self.biases is None:
            return torch.mm(inputs, self.turned, out=outputs)
        return torch.addmm(self.biases, inputs, self.turned, out=outputs)


class WrittenActivation:
    """A function of each element with a known derivative: torch's own operations."""

    def __init__(self, written: Written, kept: Kept, outputs: tuple[Tensor, Tensor]) -> None:
        self.function, self.derivative = written
        self.outputs, self.without_noise = outputs
        self.of_inputs = kept("gradient of activation", self.outputs.shape[1])

    def forward(self, inputs: Tensor) -> Tensor:
        """See `Part`."""
        self.inputs = inputs
        self.function(inputs, self.outputs)
        return self.outputs

    def noise_free(self, inputs: Tensor) -> Tensor:
        """See `Part`."""
        self.function(inputs, self.without_noise)
        return self.without_noise

    def both(self, inputs: Tensor, noise_free: Tensor) -> tuple[Tensor, Tensor]:
        """See `Part`."""
        return self.forward(inputs), self.noise_free(noise_free)

    def backward(self, gradient: Tensor) -> Tensor:
        """See `Part`."""
        self.derivative(gradient, self.inputs, self.of_inputs)
        return self.of_inputs


class OwnActivation:
    """Any activation: the member's own module, and autograd within it.

    Args:
        path: Where it is in the net.
        module: It.
        values: The workspace's parameters by name.
        gradients: Where their gradients go.
        stream: Lets the member's random numbers be the global ones.
    """

    def __init__(
        self,
        path: str,
        module: nn.Module,
        values: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor],
        stream: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.module, self.stream = module, stream
        names = {name: f"{path}.{name}" for name, _ in module.named_parameters()}
        self.own = {name: values[full].detach().requires_grad_() for name, full in names.items()}
        self.gradients = [gradients[full] for full in names.values()]

    def forward(self, inputs: Tensor) -> Tensor:
        """See `Part`."""
        self.inputs = inputs.detach().requires_grad_()
        with torch.enable_grad(), self.stream():
            self.outputs = self._called(self.inputs)
        return self.outputs.detach()

    def noise_free(self, inputs: Tensor) -> Tensor:
        """See `Part`; modules are in evaluation mode then."""
        with self.stream():
            return self._called(inputs)

    def both(self, inputs: Tensor, noise_free: Tensor) -> tuple[Tensor, Tensor]:
        """Refuse: a module is in one mode at a time."""
        raise NotImplementedError

    def backward(self, gradient: Tensor) -> Tensor:
        """See `Part`."""
        of_inputs, *found = torch.autograd.grad(self.outputs, [self.inputs, *self.own.values()], gradient)
        for kept, one in zip(self.gradients, found, strict=True):
            kept.copy_(one)
        return of_inputs

    def _called(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = functional_call(self.module, self.own, (inputs,)) if self.own else self.module(inputs)
        return outputs


class DropoutPart:
    """``nn.Dropout`` or `KeyedDropout` at a chance above 0, the layer of a number among those of its source.

    numpy's calls take half of the time of torch's for so few numbers, and a product is the same everywhere.
    """

    def __init__(self, layer: int, source: Factors, kept: Kept, outputs: Tensor) -> None:
        self.layer, self.source, self.outputs = layer, source, outputs
        self.of_inputs = kept("gradient of dropout", outputs.shape[1])
        self._outputs, self._of_inputs = self.outputs.numpy(), self.of_inputs.numpy()
        self._inputs, self._gradient = _SeenAsArray(), _SeenAsArray()

    def forward(self, inputs: Tensor) -> Tensor:
        """See `Part`."""
        self.factors = self.source.of(self.layer)
        np.multiply(self._inputs.of(inputs), self.factors, out=self._outputs)
        return self.outputs

    def noise_free(self, inputs: Tensor) -> Tensor:
        """See `Part`."""
        return inputs

    def both(self, inputs: Tensor, noise_free: Tensor) -> tuple[Tensor, Tensor]:
        """See `Part`."""
        return self.forward(inputs), noise_free

    def backward(self, gradient: Tensor) -> Tensor:
        """See `Part`."""
        np.multiply(self._gradient.of(gradient), self.factors, out=self._of_inputs)
        return self.of_inputs


class _SeenAsArray:
    """The array of a tensor, which is made anew only for another tensor than the last one."""

    def __init__(self) -> None:
        self.tensor: Tensor | None = None

    def of(self, tensor: Tensor) -> Any:
        if tensor is not self.tensor:
            self.tensor, self.array = tensor, tensor.numpy()
        return self.array
