"""GELU: exact, and the paper's two approximations, which have names of their own as well."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from lit_gelu.activations.families.gaussian_gelu import HENDRYCKS_2016, gaussian_gelu_joint
from lit_gelu.activations.families.swish import swish, swish_derivative, swish_joint
from lit_gelu.activations.naming.entry import ActivationEntry, ActivationFacts, ModuleForm
from lit_gelu.activations.naming.spec import ActivationSpec
from lit_gelu.activations.numerics.arguments import NORMAL_END, Derivatives, elementwise, elementwise_derivative, gated
from lit_gelu.activations.numerics.gates import (
    LOGISTIC_LIMIT,
    NORMAL_LIMIT,
    logistic_curvature,
    logistic_plus_density,
    normal_cdf_plus_density,
    product_error,
    sum_error,
    times_normal_density,
    unbounded_logistic_gate,
    unbounded_normal_gate,
)
from lit_gelu.activations.onnx_recipes import Arguments, OnnxCases, OnnxOperator, OnnxRecipes, OnnxSpelling
from lit_gelu.errors import ArgumentError
from lit_gelu.memory import checked_memory, compute, memory_text

FORMS = ("none", "tanh", "sigmoid")
SIGMOID_SLOPE = 1.702  # Hendrycks and Gimpel 2016, section 2
# The tanh form's gate is (1 + tanh w) / 2 = s(2 w), with 2 w = TANH_SLOPE x + TANH_CUBIC x**3; 0.044715: ibidem.
TANH_SLOPE = 2.0 * math.sqrt(2.0 / math.pi)
TANH_CUBIC = 0.044715 * TANH_SLOPE


@elementwise
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Return ``x`` times the probability that a standard normal variable is below ``x``.

    * ``"none"``: ``x Phi(x)``, computed with ``erfc``, which keeps the relative accuracy of the left tail;
    * ``"tanh"``: ``x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3))) / 2``, at most 4.74e-4 from exact;
    * ``"sigmoid"``: ``x s(1.702 x)``, at most 2.04e-2 from exact.

    Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units (GELUs)" (arXiv 1606.08415), section 2.

    Args:
        x: Any shape, floating.
        approximate: Which form: ``"none"``, ``"tanh"`` or ``"sigmoid"``.

    Raises:
        ArgumentError: If ``x`` is not a floating tensor or ``approximate`` not one of the three.

    Example:
        >>> x = torch.tensor([-10.0, -1.0, 0.0, 1.0], dtype=torch.float64)
        >>> [f"{value:.5e}" for value in gelu(x).tolist()]
        ['-7.61985e-23', '-1.58655e-01', '0.00000e+00', '8.41345e-01']
        >>> gelu(x[3:], approximate="tanh")
        tensor([0.8412], dtype=torch.float64)
    """
    check_form("gelu", approximate)
    if approximate == "none":
        return unbounded_normal_gate(x, x)
    if approximate == "sigmoid":
        return swish(x, SIGMOID_SLOPE)
    bounded = x.clamp(-NORMAL_LIMIT, NORMAL_LIMIT)
    return unbounded_logistic_gate(x, bounded * (TANH_SLOPE + TANH_CUBIC * (bounded * bounded)))


@elementwise_derivative
def gelu_derivative(x: Tensor, order: int = 1, approximate: str = "none") -> Tensor:
    """First or second derivative of `gelu`."""
    check_form("gelu_derivative", approximate)
    if approximate == "sigmoid":
        return swish_derivative(x, order, SIGMOID_SLOPE)
    x = x.clamp(-NORMAL_LIMIT, NORMAL_LIMIT)
    if approximate == "tanh":
        return _tanh_form_derivative(x, order)
    return normal_cdf_plus_density(x, x) if order == 1 else times_normal_density(2.0 - x * x, x)


_Inexact = tuple[Tensor, Tensor]  # a value and its rounding error, to first order


def _slope(x: Tensor, cubic: float) -> _Inexact:
    """Return ``TANH_SLOPE + cubic x**2``."""
    square = x * x
    small = cubic * square
    small_error = cubic * product_error(x, x) + product_error(square, cubic)
    return TANH_SLOPE + small, sum_error(TANH_SLOPE, small) + small_error


def _times(x: Tensor, factor: _Inexact) -> _Inexact:
    value, error = factor
    return x * value, x * error + product_error(x, value)


def _tanh_form_derivative(x: Tensor, order: int) -> Tensor:
    """Return ``f'`` or ``f''`` of the tanh form for bounded ``x``, whose cube would overflow."""
    x = x if order == 1 else x.abs()  # f'' is even
    u, u_error = _times(x, _slope(x, TANH_CUBIC))
    u = u.clamp(-LOGISTIC_LIMIT, LOGISTIC_LIMIT)
    u_slope = _slope(x, 3.0 * TANH_CUBIC)
    first = _times(x, u_slope)
    if order == 1:
        return logistic_plus_density(first[0], u, first[1] + u_error * (1.0 - first[0] * torch.tanh(0.5 * u)))
    start, start_error = (2.0 * part for part in _slope(x, 6.0 * TANH_CUBIC))  # 2 u' + x u''
    curved = first[0] * u_slope[0]  # x u'**2
    curved_error = product_error(first[0], u_slope[0]) + first[0] * u_slope[1] + first[1] * u_slope[0]
    # A shift of u scales exp(-|u|); its effect on the terms that are exp(-|u|) smaller again is left out.
    shift = u_error * (start - curved)
    return logistic_curvature(start, curved, u, correction=start_error - curved_error - shift)


def check_form(name: str, approximate: str) -> None:
    """Refuse a form of GELU that does not exist."""
    if approximate not in FORMS:
        accepted = ", ".join(repr(form) for form in FORMS)
        raise ArgumentError(f"{name}: approximate={approximate!r} is not a form of GELU. Use one of {accepted}.")


def sigmoid_gelu_by_torch(x: Tensor) -> Tensor:
    """Return ``x sigmoid(1.702 x)`` by torch's functions."""
    return x * torch.sigmoid(SIGMOID_SLOPE * x)


def gelu_joint(x: Tensor, approximate: str = "none") -> Derivatives:
    """GELU in any form."""
    if approximate == "sigmoid":
        return swish_joint(x, SIGMOID_SLOPE)
    return _tanh_form_joint(x) if approximate == "tanh" else gaussian_gelu_joint(x)


def _tanh_form_joint(x: Tensor) -> Derivatives:
    """``x s(u)``, ``u = 2 sqrt(2 / pi) (x + 0.044715 x^3)``."""
    bounded = x.clamp(-NORMAL_END, NORMAL_END)
    square = bounded * bounded
    u = bounded * (TANH_SLOPE + TANH_CUBIC * square)
    slope = TANH_SLOPE + (3 * TANH_CUBIC) * square
    gate, closed = torch.sigmoid(u), torch.sigmoid(-u)
    slanted = bounded * slope
    first = gate * (1 + slanted * closed)
    bend = 2 * slope + (6 * TANH_CUBIC) * square + slanted * slope * (closed - gate)
    return Derivatives(gated(x, gate, bounded <= -NORMAL_END), first, gate * closed * bend, gate)


class SigmoidGELU(nn.Module):
    """``f(x) = x sigmoid(1.702 x)``, elementwise, any shape and floating dtype.

    The gate differs from Phi by at most 0.00949, the function from GELU by at most 0.02033 (at ``|x| = 2.270``).
    It is no subclass of ``torch.nn.GELU``: ``torch.nn.TransformerEncoderLayer`` would take it for the exact function in
    its fused path.

    Bytes kept for the backward pass, for each float32 element: 8; 4 with ``memory="recompute"``.

    Args:
        memory: ``"recompute"`` keeps ``x`` alone for the backward pass; ``"autograd"`` what torch's functions need.

    Raises:
        ArgumentError: If ``memory`` is no mode.

    Example:
        >>> SigmoidGELU()(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([-0.1542,  0.0000,  0.8458])
    """

    def __init__(self, memory: str = "autograd") -> None:
        super().__init__()
        self.memory = checked_memory(memory)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function to a floating tensor."""
        return compute(self.memory, sigmoid_gelu_by_torch, x)

    def extra_repr(self) -> str:
        """Return for ``repr`` how it is computed, unless in the usual way."""
        return memory_text(self.memory).removeprefix(", ")


FORMULAS = {
    "none": "x Phi(x)",
    "tanh": "0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))",
    "sigmoid": "x sigmoid(1.702 x)",
}


def build_gelu(approximate: str = "none", memory: str = "autograd") -> nn.Module:
    """Build the module of one of GELU's three forms."""
    check_form("gelu", approximate)
    if approximate == "sigmoid":
        return SigmoidGELU(memory)
    if memory != "autograd":
        checked_memory(memory)
        raise ArgumentError(
            f"'gelu': memory={memory!r} is not accepted with approximate={approximate!r}: torch's function keeps its "
            "input alone already. Leave memory out."
        )
    return nn.GELU(approximate=approximate)


def _facts(approximate: str = "none", **_: Any) -> ActivationFacts:
    return ActivationFacts(FORMULAS[approximate], HENDRYCKS_2016, smoothness=float("inf"), asymptotes=("0", "x"))


def _sigmoid_form(module: nn.Module) -> dict[str, Any]:  # by name, as the registry can be pickled
    return {"approximate": "sigmoid", "memory": module.memory}


# GELU's primitives stand in the order Mul(x, 0.5) Div Erf Add Mul, which onnxruntime fuses again to one Gelu. torch's
# own order at opsets 18 and 19 is not fused and runs 2 to 3 times slower.
# GELU's tanh form in primitives is in the order that onnxruntime fuses to FastGelu, 3 times faster, but where its
# result is the graph's output. 0.5 is the first operand: onnxruntime merges equal products, and up to 1.31 the fusion
# removes one that others still read, so that the file does not open. Torch writes 0.5 * x with the number behind.
_TANH_FORMULA = "Mul(Mul(0.5, x), Add(Tanh(Mul(Add(x, Mul(Pow(x, 3.0), 0.044715)), SQRT_2_OVER_PI)), 1.0))"
EXACT_ONNX = OnnxRecipes(
    native="Gelu(x, approximate='none')",
    primitives="Mul(Mul(x, 0.5), Add(Erf(Div(x, SQRT_2)), 1.0))",
    contrib="microsoft.Gelu(x)",
    policy={"* * *": "native"},  # one operator, which every runtime computes in float32
    absolute=1e-7,
)


def _case(arguments: Arguments) -> str:
    return f"gelu(approximate={arguments.get('approximate', 'none')!r})"


_ONNX = OnnxCases(
    {
        "gelu(approximate='none')": replace(
            EXACT_ONNX,
            spellings=(OnnxSpelling("Mul(Mul(x, 0.5), Add(Erf(Mul(x, SQRT_HALF)), 1.0))", {"approximate": "none"}),),
        ),
        "gelu(approximate='tanh')": OnnxRecipes(
            native="Gelu(x, approximate='tanh')",
            primitives=_TANH_FORMULA,
            contrib="microsoft.FastGelu(x)",
            policy={"tensorrt * *": "native"},  # onnxruntime's CUDA kernel computes in the file's dtype
            absolute=5.5e-7,
            notes={
                "ort-cuda strict": "approximate='none' is 1 kernel, and at most 4.8e-4 away",
                "ort-cuda fast": "largest error 2.0e-3 (fp16), 9.0e-3 (bf16); 0 below -3.59, -3.06",
            },
            spellings=(OnnxSpelling(_TANH_FORMULA, {"approximate": "tanh"}),),
        ),
        "gelu(approximate='sigmoid')": OnnxRecipes(
            primitives="Mul(x, Sigmoid(Mul(x, 1.702)))",
            contrib="microsoft.QuickGelu(x, alpha=1.702)",
            accurate="Div(x, Add(Exp(Mul(x, -1.702)), 1.0))",
            notes={
                "ort-cuda strict": "approximate='none' is 1 kernel, and at most 2.1e-2 away",
                "ort-cuda fast": "largest error 2.4e-3 (fp16), 1.8e-2 (bf16)",
            },
            spellings=(OnnxSpelling("Mul(x, Sigmoid(Mul(x, 1.702)))", {"approximate": "sigmoid"}),),
        ),
    },
    _case,
    OnnxOperator("Gelu", {"approximate": ("approximate", "none")}),
)


ENTRIES = (
    ActivationEntry(
        "gelu",
        build_gelu,
        function=gelu,
        derivative=gelu_derivative,
        joint=gelu_joint,
        facts=_facts,
        aliases=("gelu_exact", "gelu_python"),
        modules=(ModuleForm(nn.GELU, keeps_input=True), ModuleForm(SigmoidGELU, _sigmoid_form)),
        functions=(F.gelu,),
        onnx=_ONNX,
    ),
    ActivationEntry(
        "gelu_tanh",
        build_gelu,
        aliases=("gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh", "gelu_python_tanh"),
        preset=ActivationSpec.of("gelu", approximate="tanh"),
    ),
    ActivationEntry(
        "gelu_sigmoid", build_gelu, aliases=("quick_gelu",), preset=ActivationSpec.of("gelu", approximate="sigmoid")
    ),
)
