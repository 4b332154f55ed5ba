"""Wide residual nets for images: the block of the GELU paper and the original one, and the net of three stages."""

from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

from torch import Tensor, nn

from lit_gelu.tasks.lasagne_batch_norm import LasagneBatchNorm

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
