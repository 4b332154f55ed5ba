"""`MNISTClassifier`: the GELU paper's fully connected net for MNIST (section 3.1)."""

from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.tasks.activation_task import PIXELS, ClassificationTask, check_digit_images, check_numbers

WIDTH = 128
CLASSES = 10


class MNISTClassifier(ClassificationTask):
    """784 -> 8 x [Linear 128, activation, dropout] -> Linear 10, for 28x28 images of digits: 217,354 parameters.

    As Hendrycks and Gimpel trained it (arXiv 1606.08415, section 3.1 and their code): rows of every weight, the output
    layer's too, drawn from N(0, 1) and divided by their length; biases 0; mean cross-entropy without weight decay; Adam
    (0.9, 0.999, 1e-8) at a constant learning rate; batches of 128; GELU in its tanh form. The paper says "8-layer": its
    code has eight hidden layers, an earlier script seven (``hidden_layers=7``, 200,842 parameters).

    Args:
        activation: Any form that `lit_gelu.activations.create` takes; each layer has an instance of its own.
        learning_rate: Adam's learning rate; the paper tunes it over 1e-3, 1e-4 and 1e-5.
        keep: Probability of keeping a unit after each hidden activation in training; the paper uses 1 and 0.5.
        hidden_layers: Number of hidden layers.
        momentum: Adam's beta1. The paper advises momentum for GELU (section 4) and trains with 0.9; 0 turns it off.
        registry: Where the activation's name is looked up; ``None`` means `lit_gelu.activations.registry`.

    Raises:
        ArgumentError: If a number is out of its range, or the activation changes the shape of its input.

    Example:
        >>> model = MNISTClassifier(activation="gelu(approximate='tanh')")
        >>> sum(parameter.numel() for parameter in model.parameters())
        217354
        >>> model(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        activation: str | dict[str, Any] = "gelu_tanh",
        learning_rate: float = 1e-3,
        keep: float = 1.0,
        hidden_layers: int = 8,
        momentum: float = 0.9,
        registry: ActivationRegistry | None = None,
    ) -> None:
        super().__init__(activation, registry)
        check_numbers(learning_rate=learning_rate, keep=keep, hidden_layers=hidden_layers, momentum=momentum)
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.hidden = self.dense_layers(activation, (PIXELS, *[WIDTH] * hidden_layers), keep)
        self.output = nn.Linear(WIDTH, CLASSES)
        self.init_dense_layers_()
        self.example_input_array = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits ``[batch, 10]`` of images ``[batch, 1, 28, 28]`` or ``[batch, 784]``, pixels in [0, 1]."""
        check_digit_images(images)
        logits: Tensor = self.output(self.hidden(images.flatten(start_dim=1)))
        return logits

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam with a constant learning rate."""
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate, betas=(self.momentum, 0.999))
