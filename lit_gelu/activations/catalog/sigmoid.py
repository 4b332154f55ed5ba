"""Sigmoid, tanh and hard sigmoid: mostly gates, listed as such by ``surgery``."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations import functional
from lit_gelu.activations.catalog._package import INPLACE, NO_ARGUMENTS, REGISTERED_BY
from lit_gelu.activations.entry import ActivationEntry, ModuleForm
from lit_gelu.activations.info import ActivationFacts

ENTRIES = (
    ActivationEntry(
        "sigmoid",
        nn.Sigmoid,
        function=functional.sigmoid,
        derivative=functional.sigmoid_derivative,
        facts=ActivationFacts("1 / (1 + exp(-x))", smoothness=float("inf"), asymptotes=("0", "1"), gate=True),
        modules=(ModuleForm(nn.Sigmoid, NO_ARGUMENTS),),
        functions=((torch.sigmoid, ()), (torch.sigmoid_, ()), (F.sigmoid, ())),
        registered_by=REGISTERED_BY,
    ),
    ActivationEntry(
        "tanh",
        nn.Tanh,
        function=functional.tanh,
        derivative=functional.tanh_derivative,
        facts=ActivationFacts("tanh(x)", smoothness=float("inf"), asymptotes=("-1", "1"), gate=True),
        modules=(ModuleForm(nn.Tanh, NO_ARGUMENTS),),
        functions=((torch.tanh, ()), (torch.tanh_, ()), (F.tanh, ())),
        registered_by=REGISTERED_BY,
    ),
    ActivationEntry(
        "hard_sigmoid",
        nn.Hardsigmoid,
        function=functional.hard_sigmoid,
        derivative=functional.hard_sigmoid_derivative,
        facts=ActivationFacts(
            formula="min(max(x + 3, 0), 6) / 6",
            reference="Howard et al. 2019, Searching for MobileNetV3 (arXiv 1905.02244)",
            smoothness=0,
            asymptotes=("0", "1"),
            kinks=((-3.0, 1 / 6), (3.0, -1 / 6)),
            gate=True,
        ),
        aliases=("hardsigmoid",),
        modules=(ModuleForm(nn.Hardsigmoid, INPLACE),),
        functions=((F.hardsigmoid, ()),),
        registered_by=REGISTERED_BY,
    ),
)
