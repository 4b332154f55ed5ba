"""`MNISTAutoencoder`: the GELU paper's deep autoencoder for MNIST (section 3.2)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lit_gelu.activations import ActivationRegistry
from lit_gelu.tasks.activation_task import PIXELS, ActivationTask, check_digit_images, check_numbers

ENCODER = (PIXELS, 1000, 500, 250, 30)
DECODER = (30, 250, 500, 1000)


class MNISTAutoencoder(ActivationTask):
    """784-1000-500-250-30-250-500-1000-784, an activation after each of the 7 hidden layers: 2,837,314 parameters.

    As Hendrycks and Gimpel trained it (arXiv 1606.08415, section 3.2 and their code): the 30 units of the bottleneck
    have the activation too, the output is linear, there is neither dropout nor normalisation; the loss is the squared
    error averaged over the batch and the 784 pixels; initialisation and Adam are those of `MNISTClassifier`; batches of
    64 of all 60,000 training images: ``MNISTData(batch_size=64, validation=0)``, 937 steps an epoch. The paper's figure
    shows 250 epochs (D3; their code runs 500, an earlier script 300) at 1e-3 and 1e-4 (D4; an earlier version of the
    paper also 1e-5), the median of three seeds; GELU in its tanh form.

    It logs ``train_loss``, ``val_loss`` and ``test_loss``, the mean squared error per pixel. The paper holds no images
    out: its figure shows the loss on the test set. For its curve over a run, pass ``data.test_dataloader()`` as
    `Trainer.fit`'s ``val_dataloaders``; nothing is chosen by it.

    Args:
        activation: Any form that `lit_gelu.activations.create` takes; each layer has an instance of its own.
        learning_rate: Adam's learning rate; the paper shows 1e-3 and 1e-4.
        registry: Where the activation's name is looked up; ``None`` means `lit_gelu.activations.registry`.

    Raises:
        ArgumentError: If the learning rate is out of its range, or the activation changes the shape of its input.

    Example:
        >>> model = MNISTAutoencoder(activation="elu")
        >>> images = torch.zeros(2, 1, 28, 28)
        >>> model.encode(images).shape, model(images).shape
        (torch.Size([2, 30]), torch.Size([2, 1, 28, 28]))
    """

    def __init__(
        self,
        activation: str | dict[str, Any] = "gelu_tanh",
        learning_rate: float = 1e-3,
        registry: ActivationRegistry | None = None,
    ) -> None:
        super().__init__(activation, registry)
        check_numbers(learning_rate=learning_rate)
        self.learning_rate = learning_rate
        self.encoder = self.dense_layers(activation, ENCODER)
        self.decoder = self.dense_layers(activation, DECODER)
        self.output = nn.Linear(DECODER[-1], PIXELS)
        self.init_dense_layers_()
        self.example_input_array = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))

    def encode(self, images: Tensor) -> Tensor:
        """Return the code ``[batch, 30]`` of images ``[batch, 1, 28, 28]`` or ``[batch, 784]``, pixels in [0, 1]."""
        check_digit_images(images)
        code: Tensor = self.encoder(images.flatten(start_dim=1))
        return code

    def forward(self, images: Tensor) -> Tensor:
        """Return the reconstruction, in the shape of the images that `encode` takes; not clipped to [0, 1]."""
        pixels: Tensor = self.output(self.decoder(self.encode(images)))
        return pixels.reshape_as(images)

    def mean_loss(self, inputs: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG002 - the labels of the digits
        """Return the squared error averaged over batch and pixels; the digits are not used."""
        return functional.mse_loss(self(inputs), inputs)

    def sample_values(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:  # noqa: ARG002 - as above
        """Return the squared error of each image, averaged over its pixels: ``"loss"``, ``[batch]``."""
        return {"loss": (self(inputs) - inputs).square().flatten(start_dim=1).mean(dim=1)}
