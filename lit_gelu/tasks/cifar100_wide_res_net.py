"""`CIFAR100WideResNet`: the GELU paper's wide residual net, with the paper's block."""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.lr_scheduler import LambdaLR

from lit_gelu.activations import ActivationRegistry
from lit_gelu.surgery import infer_channels_
from lit_gelu.tasks.activation_task import Batch, ClassificationTask, check_inputs, check_numbers
from lit_gelu.tasks.optimizers import LasagneNesterovSGD, check_schedule_lasts, cosine_factor, steps_per_epoch

EPS = 1e-4
STEM_CHANNELS = 16
STAGE_CHANNELS = (16, 32, 64)  # times the width factor
CLASSES = 100
BATCHES_PER_EPOCH = 100_000 / 128


class PaperBlock(nn.Module):
    """Shortcut plus conv, activation, dropout, conv, activation, batch normalisation; nothing follows the sum."""

    # Of Hendrycks and Gimpel's CIFAR-100 net ("Conv-Act-Conv-Act-BN", arXiv 1606.08415, section 3.5). The paper omits
    # that the convolutions have biases and where the dropout is: both are as in its code.

    def __init__(
        self,
        fed: int,
        channels: int,
        stride: int,
        has_convolved_shortcut: bool,
        make_activation: Callable[[], nn.Module],
        make_norm: Callable[[int], nn.Module],
        dropout: float,
    ) -> None:
        super().__init__()
        # Not `nn.Identity` elsewhere: that is a registered activation, which could be swapped.
        self.shortcut = nn.Conv2d(fed, channels, 1, stride, bias=False) if has_convolved_shortcut else None
        self.conv1 = nn.Conv2d(fed, channels, 3, stride, padding=1)
        self.activation1 = make_activation()
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.activation2 = make_activation()
        self.norm = make_norm(channels)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the block's output."""
        branch = self.activation2(self.conv2(self.dropout(self.activation1(self.conv1(inputs)))))
        outputs: Tensor = self.norm(branch) + (inputs if self.shortcut is None else self.shortcut(inputs))
        return outputs


def init_wide_res_net_(net: nn.Module) -> None:
    """Draw the weights as Hendrycks and Gimpel's code does, in place; whatever the activation is."""
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


class CIFAR100WideResNet(ClassificationTask):
    r"""Wide residual net with 40 convolutions, four times as wide as usual, for 32x32 images: 8,972,884 parameters.

    As Hendrycks and Gimpel trained it (arXiv 1606.08415, section 3.5; their code, which is Loshchilov and Hutter's
    of arXiv 1608.03983, changed). A 3x3 convolution to 16 channels, batch normalisation, activation, batch
    normalisation again; three stages of 64, 128 and 256 channels with six blocks each (`PaperBlock`); batch
    normalisation, activation, mean over all places, linear layer. Batch normalisation has epsilon 1e-4 and
    momentum .1. 3x3 convolutions and the linear layer are drawn after He et al., with the gains sqrt(2) and 1, whatever
    the activation is; 1x1 convolutions after Glorot and Bengio; biases are 0. GELU in its tanh form.

    Training, in batches of 128: gradient descent with Nesterov momentum .9 in Lasagne's form. Step :math:`k` has the
    learning rate :math:`.05 (1 + \cos(\pi k / 39062.5))`: one half cosine over 50 epochs of 100,000 samples, see
    `lit_gelu.data.CIFAR100Data`. The code adds :math:`5 \cdot 10^{-4} \sum w^2` to the loss, so its gradient is
    :math:`10^{-3} w`, which is ``weight_decay`` in torch's sense: twice the decay of Zagoruyko and Komodakis, whose net
    it is; the paper is silent. It covers the weights of convolutions and of the linear layer and the scales
    (gamma) of batch normalisation, neither biases, nor shifts, nor parameters of activations.

    The paper's test errors, medians of three: GELU 20.74 %, ReLU 21.77 %, ELU 22.98 %. It compares with Zagoruyko and
    Komodakis's 22.89 %, which is of their own recipe: another block, 200 epochs, the learning rate in steps, decay
    5e-4, no dropout. Loshchilov and Hutter's also differs: plain momentum, no dropout, learning rate .05.

    ``train_loss`` is what the paper's figure shows: the loss with dropout on, plus the penalty of weight decay, well
    above ``val_loss`` and ``test_loss``, which are the cross-entropy alone.

    Args:
        activation: Any form that `lit_gelu.activations.create` takes; each place has an instance of its own.
        learning_rate: That of the first step.
        blocks_per_stage: :math:`n`; there are :math:`6n + 4` convolutions.
        width_factor: :math:`k`; the stages have :math:`16k, 32k` and :math:`64k` channels.
        dropout: Probability of dropping a unit between the two convolutions of a block.
        weight_decay: As explained above; 5e-4 is Zagoruyko and Komodakis's.
        epochs: Epochs until the learning rate is 0; as many as the Trainer's ``max_epochs``.
        channels_last: Whether weights are kept in torch's channels-last order, which GPUs are faster with.
        registry: Where the activation's name is looked up; ``None`` means `lit_gelu.activations.registry`.

    Raises:
        ArgumentError: If an argument is not accepted, or the activation changes the shape of its input.

    Example:
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
        weight_decay: float = 1e-3,
        epochs: int = 50,
        channels_last: bool = False,
        registry: ActivationRegistry | None = None,
    ) -> None:
        super().__init__(activation, registry)
        check_numbers(learning_rate=learning_rate, dropout=dropout, weight_decay=weight_decay)
        check_numbers(blocks_per_stage=blocks_per_stage, width_factor=width_factor, epochs=epochs)
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        make_activation = self.activation_maker(activation, STEM_CHANNELS)
        norm = partial(nn.BatchNorm2d, eps=EPS, momentum=0.1)
        self.stem = nn.Sequential(
            OrderedDict(
                conv=nn.Conv2d(3, STEM_CHANNELS, 3, padding=1, bias=False),
                norm=norm(STEM_CHANNELS),
                activation=make_activation(),
                second_norm=norm(STEM_CHANNELS),
            )
        )
        self.stages = nn.Sequential()
        fed = STEM_CHANNELS
        for index, base in enumerate(STAGE_CHANNELS):
            stage = nn.Sequential()
            for number in range(blocks_per_stage):
                is_first, channels = number == 0, base * width_factor
                stride = 2 if is_first and index else 1
                stage.append(PaperBlock(fed, channels, stride, is_first, make_activation, norm, dropout))
                fed = channels
            self.stages.append(stage)
        self.head = nn.Sequential(
            OrderedDict(
                norm=norm(fed),
                activation=make_activation(),
                pool=nn.AdaptiveAvgPool2d(1),
                flatten=nn.Flatten(),
                output=nn.Linear(fed, CLASSES),
            )
        )
        self.example_input_array = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)) / 4
        infer_channels_(self, self.example_input_array)
        init_wide_res_net_(self)
        if channels_last:
            self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits ``[batch, 100]`` of images ``[batch, 3, 32, 32]`` as `CIFAR100Data` makes them."""
        check_inputs(images, images.shape[1:] == (3, 32, 32), "[batch, 3, 32, 32]")
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
        names = {
            f"{name}.weight"
            for name, module in self.named_modules()
            if isinstance(module, nn.Conv2d | nn.Linear | _BatchNorm) and not is_of_activation(name)
        }
        return [parameter for name, parameter in self.named_parameters() if name in names]

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return gradient descent with Nesterov momentum and the cosine schedule, stepped after every step."""
        decayed = self.decayed_parameters()
        ids = {id(parameter) for parameter in decayed}
        others = [parameter for parameter in self.parameters() if id(parameter) not in ids]
        groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": self.weight_decay}, {"params": others}]
        optimizer = LasagneNesterovSGD(groups, lr=self.learning_rate)
        trainer, epochs = self._trainer, self.hparams["epochs"]
        check_schedule_lasts(trainer, epochs)
        trains = trainer is not None and trainer.limit_train_batches != 0
        steps = steps_per_epoch(self.trainer) if trains else BATCHES_PER_EPOCH
        schedule = LambdaLR(optimizer, lambda step: cosine_factor(step, epochs * steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
