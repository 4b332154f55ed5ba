"""Models of torchvision, timm and transformers, with random weights, and what is known of the activations they call.

The numbers come from the architectures, layer by layer, as written beside each; gates are what is known to be left when
all activations are swapped.
"""

import importlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

ACTIVATIONS = frozenset({
    "celu", "elu", "gelu", "hardswish", "hardtanh", "leaky_relu", "mish", "relu", "silu", "softplus",
})  # fmt: skip
GATES = frozenset({"hardsigmoid", "sigmoid", "tanh"})


@dataclass(frozen=True)
class Case:
    """A model and what it is known to compute.

    Args:
        name: The library's name and the model's.
        build: Builds it; takes another activation, if the library can build the model with one.
        shape: Of the sample; for text, of its token indices.
        activations: How often each activation is called, by its registered name.
        gates: The same for gates.
        written_out: Activations that the library computes of other operators, which counting operators cannot see.
        takes_activation: Whether ``build`` takes one.
        text: Whether the sample is token indices.
    """

    name: str
    build: Callable[..., nn.Module]
    shape: tuple[int, ...]
    activations: Mapping[str, int]
    gates: Mapping[str, int] = field(default_factory=dict)
    written_out: frozenset[str] = frozenset()
    takes_activation: bool = False
    text: bool = False

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return randomised(self.build()).eval()

    def sample(self) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        if self.text:
            return torch.randint(VOCABULARY, self.shape, generator=generator)
        return torch.randn(self.shape, generator=generator)


class FirstOutput(nn.Module):
    """A model of transformers that takes and returns one tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Any:
        return self.model(inputs)[0]


def randomised(model: nn.Module) -> nn.Module:
    """Give all weights values that let every activation be seen in the output.

    Initial weights often hide them: heads and residual branches begin as zero (ViT's head, ResNet's last scale), or as
    1e-6 of what they will be (ConvNeXt's layer scale).
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.1)
            elif parameter.squeeze().ndim <= 1:
                parameter.uniform_(0.5, 1)
            elif not parameter.any():
                parameter.normal_(0, 0.02)
    return model


def torchvision_model(name: str, **arguments: Any) -> nn.Module:
    models = importlib.import_module("torchvision.models")
    return getattr(models, name)(weights=None, num_classes=5, **arguments)


def timm_model(name: str, **arguments: Any) -> nn.Module:
    return importlib.import_module("timm").create_model(name, pretrained=False, num_classes=5, **arguments)


VOCABULARY = 20
_LAYERS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
_CONFIGURATIONS: Mapping[str, Mapping[str, Any]] = {
    "Bert": {"vocab_size": VOCABULARY, "max_position_embeddings": 16, **_LAYERS},
    "GPT2": {"vocab_size": VOCABULARY, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2, "use_cache": False},
    "Llama": {"vocab_size": VOCABULARY, "num_key_value_heads": 1, "use_cache": False, **_LAYERS},
    "ViT": {"image_size": 8, "patch_size": 4, **_LAYERS},
}


def transformers_model(name: str, activation: str | None = None) -> nn.Module:
    library = importlib.import_module("transformers")
    key = "activation_function" if name == "GPT2" else "hidden_act"
    chosen = {} if activation is None else {key: activation}
    configuration = getattr(library, f"{name}Config")(**_CONFIGURATIONS[name], **chosen)
    return FirstOutput(getattr(library, f"{name}Model")(configuration))


def _torchvision(name: str, shape: tuple[int, ...], activations: Mapping[str, int], **arguments: Any) -> Case:
    return Case(f"torchvision.{name}", lambda: torchvision_model(name, **arguments), shape, activations)


def _timm(
    name: str,
    shape: tuple[int, ...],
    activations: Mapping[str, int],
    gates: Mapping[str, int] | None = None,
    **arguments: Any,
) -> Case:
    def build() -> nn.Module:
        return timm_model(name, **arguments)

    return Case(f"timm.{name}", build, shape, activations, gates or {})


def _transformers(
    name: str,
    shape: tuple[int, ...],
    activations: Mapping[str, int],
    gates: Mapping[str, int] | None = None,
    **arguments: Any,
) -> Case:
    def build(activation: str | None = None) -> nn.Module:
        return transformers_model(name, activation)

    return Case(f"transformers.{name}", build, shape, activations, gates or {}, takes_activation=True, **arguments)


SMALL = (2, 3, 32, 32)
CASES = (
    _torchvision("resnet18", SMALL, {"relu": 17}),  # one in the stem; in each of 8 blocks one module, called twice
    _torchvision("convnext_tiny", SMALL, {"gelu": 18}),  # 3 + 3 + 9 + 3 blocks
    _timm("efficientnet_lite0", SMALL, {"relu6": 33}),  # stem, head, one separable block, 2 in each of 15 inverted ones
    # 9 of its 11 blocks have squeeze-and-excitation, with a ReLU and a hard sigmoid in it; 3 blocks are built on ReLU
    # (1 + 2 + 2 of them), 8 on hard swish with 2 each; 3 more in the stem, the last convolution and the head.
    _timm("mobilenetv3_small_050", SMALL, {"relu": 14, "hard_swish": 19}, {"hard_sigmoid": 9}),
    # 3 in the stem; 9 blocks and 2 subsamplings, each one in the attention and one in the MLP
    _timm("levit_128s", (2, 3, 224, 224), {"hard_swish": 25}),
    _timm("densenet121", SMALL, {"relu": 121}),  # 2 in each of 58 layers, 3 transitions, first and last
    # 3 in the stem; 12 blocks with one in the MLP, one between the patches; 2 class blocks with one
    _timm("xcit_nano_12_p16_224", SMALL, {"gelu": 29}, img_size=32),
    # 2 in each of 16 blocks, 7 of which have squeeze-and-excitation; the stem and the last two convolutions
    _timm("ghostnet_050", SMALL, {"relu": 42}, {"hard_sigmoid": 7}),
    # SiLU: the stem, 2 in each of 6 bottlenecks, 1 in each of 3 MobileViT blocks and 9 MLPs; F.relu is called as
    # a function in 9 attentions
    _timm("mobilevitv2_050", (2, 3, 64, 64), {"silu": 25, "relu": 9}),
    # 3 in each of 16 blocks, which have squeeze-and-excitation, and the last; a function that a module of timm holds,
    # and calls with inplace=True
    _timm("nf_regnet_b0", SMALL, {"silu": 49, "relu": 16}, {"sigmoid": 16}, gamma_in_act=True),
    _transformers("Bert", (2, 5), {"gelu": 2}, {"tanh": 1}, text=True),  # the pooler's tanh
    _transformers("GPT2", (2, 5), {"gelu": 2}, text=True, written_out=frozenset({"gelu"})),  # with operators and tanh
    _transformers("Llama", (2, 5), {"silu": 2}, text=True),
    _transformers("ViT", (2, 3, 8, 8), {"gelu": 2}, {"tanh": 1}),
)


def operator_name(operator: Any) -> str:
    """Return the name of an operator, the same for the form that overwrites its input."""
    return operator._schema.name.removeprefix("aten::").rstrip("_")


class OperatorCounter(TorchDispatchMode):
    """Counts torch's operators, without regard to where they are called."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[operator_name(func)] += 1
        return func(*args, **(kwargs or {}))


class OtherActivation(TorchDispatchMode):
    """Computes another activation wherever one of torch's operators for activations is called."""

    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._activation = activation

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if operator_name(func) not in ACTIVATIONS:
            return func(*args, **(kwargs or {}))
        y = self._activation(args[0])
        return args[0].copy_(y) if func._schema.name.endswith("_") else y
