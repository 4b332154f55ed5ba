"""`CIFAR100WideResNet`: the GELU paper's wide residual net, with the paper's block and the original one."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal, get_args

import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lit_gelu.activations import ActivationRegistry
from lit_gelu.arguments import check_one_of, is_number
from lit_gelu.errors import ArgumentError
from lit_gelu.surgery import infer_channels_
from lit_gelu.tasks.activation_task import Batch, ClassificationTask
from lit_gelu.tasks.layers import LasagneBatchNorm, check_colour_images, check_numbers, check_shape_kept
from lit_gelu.tasks.optimizers import (
    LasagneNesterovSGD,
    check_schedule_lasts,
    cosine_schedule,
    steps_per_epoch,
)

BlockName = Literal["paper", "original"]
BLOCKS: tuple[str, ...] = get_args(BlockName)
EPS = 1e-4
MOMENTUM = 0.1
STEM_CHANNELS = 16
STAGE_CHANNELS = (16, 32, 64)  # times the width factor
MakeActivation = Callable[[], nn.Module]
MakeNorm = Callable[[int], nn.Module]


def norm_maker(lasagne_bn: bool) -> MakeNorm:
    """Return what makes a batch normalisation of some channels, with epsilon 1e-4 and momentum .1."""
    return partial(LasagneBatchNorm if lasagne_bn else nn.BatchNorm2d, eps=EPS, momentum=MOMENTUM)


class PaperBlock(nn.Module):
    """Shortcut plus conv, activation, dropout, conv, activation, batch normalisation; nothing follows the sum."""

    # Of Hendrycks and Gimpel's CIFAR-100 net ("Conv-Act-Conv-Act-BN", arXiv 1606.08415, section 3.5). The paper omits
    # that the convolutions have biases and where the dropout is (D15): both are as in its code.

    def __init__(
        self,
        fed: int,
        channels: int,
        stride: int,
        is_first: bool,
        *,
        make_activation: MakeActivation,
        make_norm: MakeNorm,
        dropout: float,
        closing_norm: bool = True,
    ) -> None:
        super().__init__()
        self.shortcut = _shortcut(fed, channels, stride, is_first)
        self.conv1 = nn.Conv2d(fed, channels, 3, stride, padding=1)
        self.activation1 = make_activation()
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.activation2 = make_activation()
        self.norm = make_norm(channels) if closing_norm else None

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the block's output."""
        branch = self.activation2(self.conv2(self.dropout(self.activation1(self.conv1(inputs)))))
        if self.norm is not None:
            branch = self.norm(branch)
        outputs: Tensor = branch + (inputs if self.shortcut is None else self.shortcut(inputs))
        return outputs


class OriginalBlock(nn.Module):
    """Shortcut plus normalisation, activation, conv, normalisation, activation, dropout, conv, without biases."""

    # Of Zagoruyko and Komodakis 2016 (arXiv 1605.07146). The convolution of a shortcut takes the first activation's
    # output.

    def __init__(
        self,
        fed: int,
        channels: int,
        stride: int,
        is_first: bool,
        *,
        make_activation: MakeActivation,
        make_norm: MakeNorm,
        dropout: float,
    ) -> None:
        super().__init__()
        self.norm1 = make_norm(fed)
        self.activation1 = make_activation()
        self.shortcut = _shortcut(fed, channels, stride, is_first)
        self.conv1 = nn.Conv2d(fed, channels, 3, stride, padding=1, bias=False)
        self.norm2 = make_norm(channels)
        self.activation2 = make_activation()
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the block's output."""
        activated = self.activation1(self.norm1(inputs))
        branch = self.conv2(self.dropout(self.activation2(self.norm2(self.conv1(activated)))))
        outputs: Tensor = branch + (inputs if self.shortcut is None else self.shortcut(activated))
        return outputs


def stem(block: BlockName, make_activation: MakeActivation, make_norm: MakeNorm) -> nn.Sequential:
    """Return what comes before the stages: a 3x3 convolution to 16 channels without bias, and what follows it."""
    layers = nn.Sequential()
    layers.add_module("conv", nn.Conv2d(3, STEM_CHANNELS, 3, padding=1, bias=False))
    if block == "paper":
        layers.add_module("norm", make_norm(STEM_CHANNELS))
        layers.add_module("activation", make_activation())
        layers.add_module("second_norm", make_norm(STEM_CHANNELS))
    return layers


def stages(width_factor: int, blocks: int, make_block: Callable[[int, int, int, bool], nn.Module]) -> nn.Sequential:
    """Return three stages of residual blocks; the second and the third begin with stride 2."""
    result = nn.Sequential()
    fed = STEM_CHANNELS
    for index, base in enumerate(STAGE_CHANNELS):
        channels = base * width_factor
        stage = nn.Sequential()
        for number in range(blocks):
            is_first = number == 0
            stride = 2 if is_first and index else 1
            stage.append(make_block(fed, channels, stride, is_first))
            fed = channels
        result.append(stage)
    return result


def head(channels: int, classes: int, make_activation: MakeActivation, make_norm: MakeNorm) -> nn.Sequential:
    """Return what comes after the stages: batch normalisation, activation, mean over all places, linear."""
    layers = nn.Sequential()
    layers.add_module("norm", make_norm(channels))
    layers.add_module("activation", make_activation())
    layers.add_module("pool", nn.AdaptiveAvgPool2d(1))
    layers.add_module("flatten", nn.Flatten())
    layers.add_module("output", nn.Linear(channels, classes))
    return layers


def init_wide_res_net_(net: nn.Module) -> None:
    """Draw the weights as Hendrycks and Gimpel's code does, in place; whatever the activation is (D18)."""
    # 3x3 convolutions: normal with variance 2 / fan-in (He et al. 2015); 1x1 convolutions: uniform with variance
    # 2 / (fan-in + fan-out) (Glorot and Bengio 2010); linear: normal with variance 1 / fan-in. Biases 0.
    for name, layer in net.named_modules():
        if not isinstance(layer, nn.Conv2d | nn.Linear) or is_of_activation(name):
            continue
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")
        elif layer.kernel_size == (1, 1):
            nn.init.xavier_uniform_(layer.weight)
        else:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def is_of_activation(name: str) -> bool:
    """Tell whether a module of these nets is an activation or part of one."""
    return any(part.startswith("activation") for part in name.split("."))


def _shortcut(fed: int, channels: int, stride: int, is_first: bool) -> nn.Conv2d | None:
    """Return the convolution, or nothing (not `nn.Identity`, a registered activation that could be swapped)."""
    return nn.Conv2d(fed, channels, 1, stride, bias=False) if is_first else None


OptimizerName = Literal["lasagne", "torch"]
CLASSES = 100
BATCHES_PER_EPOCH = 100_000 / 128


class CIFAR100WideResNet(ClassificationTask):
    r"""Wide residual net with 40 convolutions, four times as wide as usual, for 32x32 images: 8,972,884 parameters.

    As Hendrycks and Gimpel trained it (arXiv 1606.08415, section 3.5; their code, which is Loshchilov and Hutter's
    of arXiv 1608.03983, changed). A 3x3 convolution to 16 channels, batch normalisation, activation, batch
    normalisation again; three stages of 64, 128 and 256 channels with six blocks each (`PaperBlock`); batch
    normalisation, activation, mean over all places, linear layer. Batch normalisation has epsilon 1e-4 and
    momentum .1. 3x3 convolutions and the linear layer are drawn after He et al., with the gains sqrt(2) and 1, whatever
    the activation is (D18); 1x1 convolutions after Glorot and Bengio; biases are 0. GELU in its tanh form.

    Training, in batches of 128: gradient descent with Nesterov momentum .9 in Lasagne's form. Step :math:`k` has the
    learning rate :math:`.05 (1 + \cos(\pi k / 39062.5))`: one half cosine over 50 epochs of 100,000 samples, see
    `lit_gelu.data.CIFAR100Data` (D13), changed every step, the last about 3e-8.

    ``weight_decay`` is in torch's sense, the factor of a weight in its gradient. The code adds :math:`5 \cdot 10^{-4}
    \sum w^2` to the loss, without torch's 1/2, so its gradient is :math:`10^{-3} w`: twice the decay of Zagoruyko and
    Komodakis, whose net it is; the paper is silent (D14). It covers the weights of convolutions and of the linear layer
    and the scales (gamma) of batch normalisation, neither biases, nor shifts, nor parameters of activations.

    The paper's test errors, medians of three: GELU 20.74 %, ReLU 21.77 %, ELU 22.98 %. It compares with Zagoruyko and
    Komodakis's 22.89 %, which is of their own recipe: ``block="original"``, 200 epochs, the learning rate in steps,
    decay 5e-4, no dropout. Loshchilov and Hutter's also differs: plain momentum, no dropout, learning rate .05 (D16).

    ``train_loss`` is what the paper's figure shows: the loss with dropout on, plus the penalty of weight decay; so it
    is no pass without noise (``logs_noise_free_training_loss`` is False), and well above ``val_loss`` and
    ``test_loss``, which are the cross-entropy alone. What else is logged: `lit_gelu.tasks.ClassificationTask`.

    Args:
        activation: Any form of activation that `lit_gelu.activations.create` takes. Each place has an instance of its
            own.
        learning_rate: That of the first step.
        blocks_per_stage: :math:`n`; there are :math:`6n + 4` convolutions.
        width_factor: :math:`k`; the stages have :math:`16k, 32k` and :math:`64k` channels.
        dropout: Probability of dropping a unit between the two convolutions of a block.
        block: ``"paper"``, or ``"original"``, Zagoruyko and Komodakis's, which normalises and activates before each
            convolution, with their plain first convolution and without biases (8,972,340 parameters).
        closing_norm: Whether a batch normalisation closes each block of the paper's; False is an option for ELU.
        lasagne_bn: Whether batch normalisation averages inverse standard deviations, as Lasagne does, for evaluation.
        momentum: Nesterov momentum; 0 turns it off.
        weight_decay: As explained above; 5e-4 is Zagoruyko and Komodakis's.
        decay_gammas: Whether weight decay covers the scales of batch normalisation.
        optimizer: ``"lasagne"``, or ``"torch"``, `torch.optim.SGD`, which weighs past learning rates otherwise.
        epochs: Epochs until the learning rate is 0; as many as the Trainer's ``max_epochs``.
        batches_per_epoch: Optimizer steps in an epoch, need not be whole. ``None`` asks the Trainer's training loader:
            its samples divided by the batch size where the last, smaller batch is dropped (781.25), else its batches.
        channels_last: Whether weights are kept in torch's channels-last order, which GPUs compute faster with.
        registry: Where the activation's name is looked up; ``None`` means `lit_gelu.activations.registry`.

    Raises:
        ArgumentError: If an argument is not accepted, or the activation changes the shape of its input.

    Example:
        >>> model = CIFAR100WideResNet(activation="elu")
        >>> sum(parameter.numel() for parameter in model.parameters())
        8972884
        >>> CIFAR100WideResNet(blocks_per_stage=1, width_factor=1)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 100])
    """

    logs_noise_free_training_loss: ClassVar[bool] = False

    def __init__(
        self,
        activation: str | dict[str, Any] = "gelu_tanh",
        learning_rate: float = 0.1,
        blocks_per_stage: int = 6,
        width_factor: int = 4,
        dropout: float = 0.3,
        block: BlockName = "paper",
        closing_norm: bool = True,
        lasagne_bn: bool = False,
        momentum: float = 0.9,
        weight_decay: float = 1e-3,
        decay_gammas: bool = True,
        optimizer: OptimizerName = "lasagne",
        epochs: int = 50,
        batches_per_epoch: float | None = None,
        channels_last: bool = False,
        registry: ActivationRegistry | None = None,
    ) -> None:
        super().__init__(activation, registry)
        check_numbers(
            learning_rate=learning_rate,
            blocks_per_stage=blocks_per_stage,
            width_factor=width_factor,
            dropout=dropout,
            momentum=momentum,
            weight_decay=weight_decay,
            epochs=epochs,
        )
        check_one_of(BLOCKS, block=block)
        check_one_of(get_args(OptimizerName), optimizer=optimizer)
        if batches_per_epoch is not None and not (is_number(batches_per_epoch) and batches_per_epoch > 0):
            raise ArgumentError(
                f"batches_per_epoch={batches_per_epoch!r} is not accepted. Give a number above 0, or None to ask the "
                "Trainer's loader."
            )
        if block == "original" and not closing_norm:
            raise ArgumentError(
                'closing_norm=False is not accepted with block="original", which has no closing batch normalisation. '
                'Leave it out, or give block="paper".'
            )
        check_shape_kept(self.registry.create(activation), self.activation_spec, STEM_CHANNELS)
        self.learning_rate = learning_rate  # an attribute, because Lightning's learning rate finder sets it
        self.weight_decay = weight_decay
        self.decay_gammas = decay_gammas
        make_activation, make_norm = partial(self.registry.create, activation), norm_maker(lasagne_bn)
        paper_block = partial(PaperBlock, closing_norm=closing_norm)
        make_block: Any = paper_block if block == "paper" else OriginalBlock
        make_block = partial(make_block, make_activation=make_activation, make_norm=make_norm, dropout=dropout)
        self.stem = stem(block, make_activation, make_norm)
        self.stages = stages(width_factor, blocks_per_stage, make_block)
        channels = STAGE_CHANNELS[-1] * width_factor
        self.head = head(channels, CLASSES, make_activation, make_norm)
        self.example_input_array = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)) / 4
        infer_channels_(self, self.example_input_array)
        init_wide_res_net_(self)
        if channels_last:
            self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits ``[batch, 100]`` of images ``[batch, 3, 32, 32]`` as `CIFAR100Data` makes them."""
        check_colour_images(images)
        logits: Tensor = self.head(self.stages(self.stem(images)))
        return logits

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:  # noqa: ARG002 - Lightning's signature
        """Return the mean cross-entropy, with dropout on, and log it with the penalty of weight decay added."""
        loss = self.mean_loss(*batch)
        # The penalty is left out of what is returned: the optimizer adds its gradient.
        self.log("train_loss", loss.detach() + self.penalty(), prog_bar=True)
        return loss

    @torch.no_grad()
    def penalty(self) -> Tensor:
        """Return what weight decay adds to the loss: half of it times the sum of the squares of all that decays."""
        norms: Tensor = torch.stack(torch._foreach_norm(self.decayed_parameters()))
        return norms.square().sum().mul(self.weight_decay / 2)

    def decayed_parameters(self) -> list[Tensor]:
        """Return the parameters that weight decay covers, see the class."""
        layers = (nn.Conv2d, nn.Linear, *((_BatchNorm, LasagneBatchNorm) if self.decay_gammas else ()))
        names = {
            f"{name}.weight"
            for name, module in self.named_modules()
            if isinstance(module, layers) and not is_of_activation(name)
        }
        return [parameter for name, parameter in self.named_parameters() if name in names]

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return gradient descent with Nesterov momentum and the cosine schedule, stepped after every step."""
        decayed = self.decayed_parameters()
        ids = {id(parameter) for parameter in decayed}
        others = [parameter for parameter in self.parameters() if id(parameter) not in ids]
        groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": self.weight_decay}, {"params": others}]
        momentum = self.hparams["momentum"]
        optimizer: torch.optim.Optimizer
        if self.hparams["optimizer"] == "lasagne":
            optimizer = LasagneNesterovSGD(groups, lr=self.learning_rate, momentum=momentum)
        else:
            optimizer = torch.optim.SGD(groups, lr=self.learning_rate, momentum=momentum, nesterov=momentum > 0)
        check_schedule_lasts(self._trainer, self.hparams["epochs"])
        schedule = cosine_schedule(optimizer, self.hparams["epochs"] * self._steps_per_epoch())
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _steps_per_epoch(self) -> float:
        """Return what was given, else what the Trainer's loader says; without a Trainer that trains, the paper's."""
        batches: float | None = self.hparams["batches_per_epoch"]
        if batches is not None:
            return batches
        if self._trainer is None or self._trainer.limit_train_batches == 0:
            return BATCHES_PER_EPOCH
        return steps_per_epoch(self._trainer)
