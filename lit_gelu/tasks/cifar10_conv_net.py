"""`CIFAR10ConvNet`: the GELU paper's convolutional net for CIFAR-10 (section 3.5 and its Table 1)."""

from collections import OrderedDict
from typing import Any

import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.nn import functional

from lit_gelu.activations import ActivationRegistry
from lit_gelu.errors import ArgumentError
from lit_gelu.surgery import infer_channels_
from lit_gelu.tasks.activation_task import Batch, ClassificationTask, check_inputs, check_numbers
from lit_gelu.tasks.optimizers import AdamEpsilonInsideRoot, HalvesSchedule, check_schedule_lasts

CLASSES = 10
EPS, MOMENTUM = 1e-4, 0.1  # of Lasagne's batch normalisation; torch's epsilon is 1e-5


class ConvLayer(nn.Module):
    """Convolution without bias, norm, activation; ``padding=None`` keeps height and width (kernels are of odd size)."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        norm: nn.Module,
        activation: nn.Module,
        padding: int | None = None,
    ) -> None:
        super().__init__()
        padding = kernel_size // 2 if padding is None else padding
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=padding, bias=False)
        self.norm = norm
        self.activation = activation

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ``activation(norm(conv(inputs)))``."""
        outputs: Tensor = self.activation(self.norm(self.conv(inputs)))
        return outputs


class GaussianNoise(nn.Module):
    """Adds normal noise of a ``deviation`` in training, and is the identity in evaluation and in an exported graph."""

    def __init__(self, deviation: float) -> None:
        super().__init__()
        self.deviation = deviation

    @property
    def adds_noise(self) -> bool:
        """Whether it draws random numbers in training mode."""
        return self.deviation > 0

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ``inputs + deviation * noise``, the noise of variance 1 and drawn anew for each element."""
        if not self.training or self.deviation == 0:
            return inputs
        return inputs + self.deviation * torch.randn_like(inputs)


class CIFAR10ConvNet(ClassificationTask):
    """Nine convolutions, global average pooling and a linear layer, for 32x32 colour images: 1,408,244 parameters.

    As Hendrycks and Gimpel trained it (arXiv 1606.08415, section 3.5, Table 1 and their code; the net of Salimans and
    Kingma 2016, arXiv 1602.07868), on the ZCA-whitened images of `lit_gelu.data.CIFAR10Data`:

    - Gaussian noise of deviation 0.15 on the input, in training;
    - 3 x [3x3 convolution to 96 channels], 2x2 max pool, dropout .5; 3 x [3x3 convolution to 192 channels], 2x2 max
      pool, dropout .5; a 3x3 convolution without padding (8x8 to 6x6) and two 1x1 convolutions, 192 channels each; each
      convolution without bias, followed by batch normalisation (epsilon 1e-4, momentum .1) and the activation;
    - the mean over the 6x6 places, a linear layer without bias to ten logits, and batch normalisation of the logits,
      which is in the code only;
    - all weights Glorot uniform: neither the unit-norm rows of the paper's MNIST nets, nor the epsilon 1e-6 and
      the normal weights of Salimans and Kingma's code;
    - mean cross-entropy without weight decay, no augmentation; 200 epochs in batches of 100; GELU in its tanh form;
    - Adam with epsilon inside the root (`AdamEpsilonInsideRoot`) and beta1 .9, from half of the epochs on .5; the
      learning rate is constant in the first half, then falls linearly, epoch by epoch, to a hundredth in the last. The
      paper says "linearly decays to zero"; batch size, beta1 and epsilon are in the code only.

    The paper's test errors after the last epoch, medians of three: GELU 7.89 %, ReLU 8.16 %, ELU 8.41 %.

    It logs ``train_loss`` and ``train_error`` each step with noise and dropout on, and ``train_error_epoch``, the mean
    over the epoch, which is the training error that the paper's figure shows. Fast on a GPU with
    ``Trainer(precision="bf16-mixed")``.

    Args:
        activation: Any form that `lit_gelu.activations.create` takes; each layer has an instance of its own.
        learning_rate: Adam's base learning rate; the paper tunes it over 1e-3, 1e-4 and 1e-5.
        epochs: Length of the schedule; give what the Trainer's ``max_epochs`` is.
        keep: Probability of keeping a unit after each max pool in training.
        noise: Standard deviation of the noise on the input in training.
        channels: Channels of the first three convolutions and of the others; smaller ones are for quick runs.
        channels_last: Whether weights are kept in torch's channels-last order, the faster one on GPUs and most CPUs.
        registry: Where the activation's name is looked up; ``None`` means `lit_gelu.activations.registry`.

    Raises:
        ArgumentError: If an argument is out of its range, or the activation changes the shape of its input.

    Example:
        >>> CIFAR10ConvNet(activation="gelu_tanh")(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        activation: str | dict[str, Any] = "gelu_tanh",
        learning_rate: float = 1e-3,
        epochs: int = 200,
        keep: float = 0.5,
        noise: float = 0.15,
        channels: tuple[int, int] = (96, 192),
        channels_last: bool = True,
        registry: ActivationRegistry | None = None,
    ) -> None:
        super().__init__(activation, registry)
        if not isinstance(channels, tuple | list) or len(channels) != 2:
            raise ArgumentError(f"channels={channels!r} is not accepted. Give two integers, such as (96, 192).")
        first, second = channels
        check_numbers(**{"channels[0]": first, "channels[1]": second})
        check_numbers(learning_rate=learning_rate, epochs=epochs, keep=keep, noise=noise)
        make_activation = self.activation_maker(activation, first)
        self.learning_rate = learning_rate
        self.epochs = epochs
        self.noise = GaussianNoise(noise)

        def layer(fed: int, channels: int, kernel_size: int = 3, padding: int | None = None) -> ConvLayer:
            norm = nn.BatchNorm2d(channels, eps=EPS, momentum=MOMENTUM)
            return ConvLayer(fed, channels, kernel_size, norm, make_activation(), padding)

        self.features = nn.Sequential(
            *(layer(fed, first) for fed in (3, first, first)),
            nn.MaxPool2d(2),
            nn.Dropout(1 - keep),
            *(layer(fed, second) for fed in (first, second, second)),
            nn.MaxPool2d(2),
            nn.Dropout(1 - keep),
            layer(second, second, padding=0),
            *(layer(second, second, kernel_size=1) for _ in range(2)),
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        linear, norm = nn.Linear(second, CLASSES, bias=False), nn.BatchNorm1d(CLASSES, eps=EPS, momentum=MOMENTUM)
        self.output = nn.Sequential(OrderedDict(linear=linear, norm=norm))
        infer_channels_(self)
        weights = [module.conv.weight for module in self.features if isinstance(module, ConvLayer)]
        for weight in [*weights, linear.weight]:  # not what an activation may hold
            nn.init.xavier_uniform_(weight)
        if channels_last:
            self.to(memory_format=torch.channels_last)
        self.example_input_array = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits ``[batch, 10]`` of images ``[batch, 3, 32, 32]``, whitened as by `CIFAR10Data`."""
        check_inputs(images, images.shape[1:] == (3, 32, 32), "[batch, 3, 32, 32]")
        logits: Tensor = self.output(self.pool(self.features(self.noise(images))).flatten(start_dim=1))
        return logits

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:  # noqa: ARG002 - Lightning's signature
        """Return the loss of the batch, and log it and the share of wrong classes, both with noise and dropout on."""
        images, labels = batch
        logits = self(images)
        loss = functional.cross_entropy(logits, labels)
        error = (logits.detach().argmax(dim=1) != labels).float().mean()
        self.log("train_loss", loss.detach(), prog_bar=True)
        self.log("train_error", error)
        self.log("train_error_epoch", error, on_step=False, on_epoch=True, batch_size=len(labels), sync_dist=True)
        return loss

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Return Adam and the schedule of its learning rate and its beta1."""
        check_schedule_lasts(self._trainer, self.epochs)
        optimizer = AdamEpsilonInsideRoot(self.parameters(), lr=self.learning_rate, betas=(0.9, 0.999), eps=1e-8)
        schedule = HalvesSchedule(optimizer, self.epochs)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "epoch"}}
