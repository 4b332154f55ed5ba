"""The activations of a model by torch.compile: one pass over memory, computed in float32 and rounded once.

    model = lit_gelu.kernels.fuse(model)

In 16 bits torch's GELU loses its left tail, and an activation that is written as several of torch's functions reads and
writes the tensor at each of them. A fused model computes large tensors by compiled code that does neither, everything
else by torch as before.
"""

import functools
import importlib.util
import math
import sys
import types
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.families.gaussian_gelu import gaussian_gelu_joint
from lit_gelu.activations.families.gelu import gelu_joint
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.sandbox import in_side_pass

__all__ = ["LitGeluKernelWarning", "Route", "explain", "fuse", "is_fused", "unfuse"]

BACKEND = "inductor"  # of torch.compile
THRESHOLDS = {"cuda": 2**22, "cpu": 2**18}  # elements from which on a call's overhead is short beside its work
SIXTEEN_BITS = (torch.float16, torch.bfloat16)
ROW = 64  # elements; without a known divisor of their number the compiler reads 16-bit numbers one by one

Derivative = tuple[Tensor, Tensor]  # f and f'
Arguments = Mapping[str, Any]
_Module = TypeVar("_Module", bound=nn.Module)

_failures: dict[type[nn.Module], str] = {}  # by the class of a module: why it is left to torch from now on


class LitGeluKernelWarning(UserWarning):
    """torch.compile failed at an activation; torch's own functions compute it from then on."""


class Route(NamedTuple):
    """Which code computes an activation, and why."""

    code: Literal["formula", "compiled", "torch"]
    why: str


class _Plan(NamedTuple):
    """What is to be known of a fused module."""

    joint: Callable[..., Any] | None  # of its row, where the module holds no tensors
    read: Callable[[nn.Module], dict[str, Any]]  # the present arguments of ``joint``
    one_pass: bool  # whether torch computes it in one pass


def fuse(model: _Module, registry: ActivationRegistry | None = None) -> _Module:
    """Return a model, changed in place, whose activations torch.compile computes where their tensors are large.

    In float16 and bfloat16 an activation whose row has a joint form (GELU, SiLU, Swish, Mish, ELU, hard Swish and their
    kin) is computed by it. Any other, learned and gated ones and your own among them, is compiled as its ``forward``
    stands, in float32 too. Left to torch is what draws random numbers, and what torch computes in one pass that no
    joint form makes better: ReLU, sigmoid, tanh, PReLU. A class of your own must do nothing but compute; one that holds
    buffers or modules is left to torch as well.

    Compiled code runs on CUDA from 4,194,304 elements on and on CPUs from 262,144 on. The first such tensor waits some
    seconds for it. Inside your own `torch.compile` the joint form takes the place of torch's function in 16 bits, and
    is compiled with what stands beside it. In exports, for forward mode and `torch.func`, torch computes as before. The
    joint form has derivatives of any order; of what is compiled as it stands there is one backward pass, and no second
    derivatives, as of all that torch.compile makes.

    Names, classes, ``repr``, hooks, ``state_dict`` and specs of the modules stay. `unfuse` undoes it; call it before
    `torch.jit.script`, and for single activations that you want to leave to torch.

    Args:
        model: Any model.
        registry: Where the activations are registered; by default the shared one.

    Example:
        >>> net = fuse(nn.Sequential(nn.Linear(2, 3), nn.GELU()))
        >>> net[1], type(net[1]) is nn.GELU, is_fused(net[1])
        (GELU(approximate='none'), True, True)
    """
    rows = registry_or_default(registry)
    for module in model.modules():
        if not is_fused(module):
            plan = _plan(module, rows)
            if isinstance(plan, _Plan):
                module.forward = functools.partial(_forward, module, plan)
    return model


def unfuse(model: _Module) -> _Module:
    """Return a model with `fuse` undone, in place.

    Example:
        >>> is_fused(unfuse(fuse(nn.GELU())))
        False
    """
    for module in model.modules():
        if is_fused(module):
            del module.forward
    return model


def is_fused(module: nn.Module) -> bool:
    """Say whether `fuse` changed how a module itself computes."""
    forward = vars(module).get("forward")
    return isinstance(forward, functools.partial) and forward.func is _forward


def explain(module: nn.Module, x: Tensor, registry: ActivationRegistry | None = None) -> Route:
    """Say which code computes an activation of a tensor, and why.

    Args:
        module: An activation, fused or not.
        x: Its input.
        registry: Where the activation is registered; by default the shared one.

    Returns:
        ``code`` is ``"formula"`` (compiled code of the row's joint form), ``"compiled"`` (of the module's own
        ``forward``) or ``"torch"``; ``why`` says it in words.

    Example:
        >>> explain(fuse(nn.GELU()), torch.zeros(3, dtype=torch.bfloat16)).why
        '3 elements are less than 262,144: torch starts its functions faster'
        >>> explain(nn.GELU(), torch.zeros(3)).why
        'GELU is not fused; lit_gelu.kernels.fuse does it'
        >>> explain(nn.Linear(2, 3), torch.zeros(2)).why
        'Linear is no registered activation'
    """
    if is_fused(module):
        return _route(module, vars(module)["forward"].args[1], x)
    plan = _plan(module, registry_or_default(registry))
    why = plan if isinstance(plan, str) else f"{type(module).__name__} is not fused; lit_gelu.kernels.fuse does it"
    return Route("torch", why)


def _plan(module: nn.Module, registry: ActivationRegistry) -> _Plan | str:
    """Return how a module would be fused, or why it is left to torch."""
    row, name = registry.entry_of(module), type(module).__name__
    if row is None:
        return f"{name} is no registered activation"
    if "forward" in vars(module):
        return f"the forward of this {name} is replaced already"
    if row.facts_for(registry.spec_of(module).arguments).stochastic:
        return f"{row.name!r} draws random numbers"
    form, of_torch = row.form_of(module), type(module).__module__.startswith("torch.nn.")
    if isinstance(module, nn.Identity) or (of_torch and (row.joint is None or not form or not form.keeps_input)):
        return f"torch computes {name} in one pass"  # or saves the output alone, which the next layer keeps anyway
    holds = next((True for _ in (*module.buffers(), *module.children())), False)
    if holds and row.function is None:
        return f"{name} holds buffers or modules, so it may do more than compute"
    if form is None:  # of a plain function
        return _Plan(row.joint, lambda module: dict(cast("Any", module).kwargs), one_pass=False)
    holds = holds or next((True for _ in module.parameters()), False)
    return _Plan(None if holds else row.joint, form.live_arguments, of_torch)


def _forward(module: nn.Module, plan: _Plan, *args: Any, **kwargs: Any) -> Tensor:
    plain: Callable[..., Tensor] = type(module).forward
    x = args[0] if len(args) == 1 and not kwargs else None
    if not isinstance(x, Tensor) or (x.numel() < THRESHOLDS["cpu"] and not torch.compiler.is_compiling()):
        return plain(module, *args, **kwargs)
    code = _route(module, plan, x).code
    y: Tensor | None = None
    if code == "formula" and torch.compiler.is_compiling():
        y = _InGraph.apply(x, plan.joint, plan.read(module))
    elif code == "formula":
        y = _try(module, _ByFormula.apply, x, module, plan)
    elif code == "compiled":
        y = _try(module, _compiled_forward(plain, getattr(module, "function", None)), module, x)
    return plain(module, x) if y is None else y


def _route(module: nn.Module, plan: _Plan, x: Tensor) -> Route:
    device, formula = x.device.type, plan.joint is not None and x.dtype in SIXTEEN_BITS
    limit = THRESHOLDS.get(device, 0)
    if type(x) not in {Tensor, nn.Parameter} or x.layout != torch.strided or device not in THRESHOLDS:
        return Route("torch", f"a {type(x).__name__} ({x.layout}, {device}) is none that compiled code is for")
    if getattr(module, "inplace", False):
        return Route("torch", "inplace=True overwrites the input, which takes no memory")
    if torch.compiler.is_compiling():
        # The flag itself: for torch 2.11's compiler `torch.compiler.is_exporting()` is always true.
        if torch.compiler._is_exporting_flag:
            return Route("torch", "exported graphs have torch's own operator")
        return Route("formula" if formula else "torch", "torch.compile compiles it with what is beside it")
    if not formula and (plan.one_pass or x.dtype not in {*SIXTEEN_BITS, torch.float32}):
        return Route("torch", f"torch's own function takes one pass in {x.dtype}" if plan.one_pass else f"{x.dtype}")
    if x.numel() < limit:
        return Route("torch", f"{x.numel():,} elements are less than {limit:,}: torch starts its functions faster")
    if why := _watched() or _lacking(device, x.device.index or 0) or _failures.get(type(module), ""):
        return Route("torch", why)
    return Route("formula" if formula else "compiled", f"{x.dtype} on {x.device}, {x.numel():,} elements")


def _watched() -> str:
    """Return who differentiates or records torch's own functions; nothing if nobody does."""
    # Private names of torch 2.11 to 2.15, which has no public ones to ask by.
    if in_side_pass():
        return "a measurement beside the training differentiates torch's own functions twice"
    if torch._C._are_functorch_transforms_active():
        return "torch.func transforms what torch differentiates itself"
    if forward_ad._current_level >= 0:
        return "forward-mode derivatives are torch's own"
    if torch._C._len_torch_dispatch_stack():
        return "a dispatch mode watches torch's own operators"
    return "torch.jit records torch's own operators" if torch._C._get_tracing_state() is not None else ""


@functools.cache
def _lacking(device: str, index: int) -> str:
    """Return what a device, or this machine, lacks for compiled code; nothing if it runs."""
    if device == "cpu":
        return ""
    if importlib.util.find_spec("triton") is None:
        return f"Triton is not installed, or has no build for {sys.platform}"
    capability = torch.cuda.get_device_capability(index)
    return "" if capability >= (8, 0) else f"compute capability {capability[0]}.{capability[1]} is below 8.0"


def _try(module: nn.Module, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what compiled code returns; ``None`` if it cannot be compiled, which must not end a training run."""
    try:
        return function(*args, **kwargs)
    except torch._dynamo.exc.TorchDynamoException as error:  # of all that torch.compile raises
        name = type(module).__name__
        _failures[type(module)] = f"torch.compile failed at {name} before: {type(error).__name__}: {error}"
        warnings.warn(
            f"torch.compile failed at {name}, so torch's own functions compute it from now on: "
            f"{type(error).__name__}: {error}",
            LitGeluKernelWarning,
            stacklevel=2,
        )
        return None


class _ByFormula(torch.autograd.Function):
    """``f(x)`` by the joint form, of which x alone is kept."""

    # The old style, without `setup_context`: with it, torch reads the signature anew at every call, in 40 us.

    @staticmethod
    def forward(ctx: Any, x: Tensor, module: nn.Module, plan: _Plan) -> Tensor:
        ctx.save_for_backward(x)
        ctx.module, ctx.passes = module, _passes(plan.joint, tuple(plan.read(module).items()))
        y = torch.empty_like(x)
        if y.stride() != x.stride():  # x has gaps or overlaps in memory
            x, y = y.copy_(x), torch.empty_like(y)
        ctx.passes[0](_rows(y), _rows(x))
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        # Differentiated itself, or one of many at once: that of is_grads_batched is no functorch transform.
        batched = torch._C._functorch.is_legacy_batchedtensor(gradient)
        if torch.is_grad_enabled() or torch._C._are_functorch_transforms_active() or batched:
            return _by_autograd(ctx.module, x, gradient), None, None
        by_x = torch.empty_like(x)
        if by_x.stride() != x.stride():
            x, by_x = by_x.copy_(x), torch.empty_like(by_x)
        if gradient.stride() != x.stride():  # that of `sum` is expanded, that of a slice strided
            gradient = torch.empty_like(x).copy_(gradient)
        if _try(ctx.module, ctx.passes[1], _rows(by_x), _rows(gradient), _rows(x)) is None:
            return _by_autograd(ctx.module, x.requires_grad_(), gradient), None, None
        return by_x, None, None


class _InGraph(torch.autograd.Function):
    """The joint form in operations that the user's own torch.compile fuses with what is beside it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, joint: Callable[..., Any], arguments: Arguments) -> Tensor:
        ctx.save_for_backward(x)
        ctx.joint, ctx.arguments = joint, arguments
        return _derivatives(joint, arguments, x.float())[0].to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return (gradient.float() * _derivatives(ctx.joint, ctx.arguments, x.float())[1]).to(x.dtype), None, None


def _by_autograd(module: nn.Module, x: Tensor, gradient: Tensor) -> Tensor:
    """Return torch's gradient, which may be differentiated itself."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        y = type(module).forward(module, x)
    return torch.autograd.grad(y, x, gradient, create_graph=again)[0]


def _rows(x: Tensor) -> Tensor:
    """Return the elements of a tensor as they lie in memory, in rows: one compiled graph serves all shapes."""
    width = 1 if x.numel() % ROW else ROW
    return x.detach().as_strided((x.numel() // width, width), (width, 1))


@functools.lru_cache(256)
def _passes(joint: Callable[..., Any], arguments: tuple[tuple[str, Any], ...]) -> tuple[Callable[..., Tensor], ...]:
    """Return compiled code that writes f, and a gradient times f', into its first argument."""

    def forward(y: Tensor, x: Tensor) -> Tensor:
        return y.copy_(_derivatives(joint, dict(arguments), x.float())[0])

    def backward(by_x: Tensor, gradient: Tensor, x: Tensor) -> Tensor:
        return by_x.copy_(gradient.float() * _derivatives(joint, dict(arguments), x.float())[1])

    return _compiled(forward), _compiled(backward)


@functools.lru_cache(256)
def _compiled_forward(forward: Callable[..., Tensor], function: object) -> Callable[..., Tensor]:  # noqa: ARG001
    """Return the compiled ``forward`` of a class; of `FunctionActivation` one for each function that it may hold."""
    return _compiled(forward)


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function apart from others of the same code: torch.compile gives up after so many graphs of one."""
    if isinstance(function, types.FunctionType):
        code, name = function.__code__.replace(), function.__name__
        function = types.FunctionType(code, function.__globals__, name, function.__defaults__, function.__closure__)
    return torch.compile(function, backend=BACKEND, fullgraph=True)


def _derivatives(joint: Callable[..., Any], arguments: Arguments, x: Tensor) -> Derivative:
    """Return f and f' of float32 numbers, to the digits that 16 bits hold."""
    # Of Phi the joint forms have an error function, 58 instructions a bfloat16 element on an H200 (71 for f') where
    # reading and writing leave time for 31 (47); these formulas take 20 (27), torch's own GELU 36 (51).
    if joint is gaussian_gelu_joint:
        return normal_gated(x, **arguments)
    if joint is gelu_joint and arguments.get("approximate", "none") == "none":
        return normal_gated(x)
    value, first, *_ = joint(x, **arguments)
    return value, first


# Phi(-t) = 2**q(t) for t >= 0, q of degree 9: the minimax polynomial on [0, 13.2] for the relative error of 2**q, which
# is 4.7e-5 in float32, with q(0) = -1. 13.2 is where x Phi(x) leaves bfloat16's normal numbers, and at 14.2 it is 0.
TAIL = (
    -1.0,
    -1.151094913482666,
    -0.458644837141037,
    -0.05404863506555557,
    0.008699270896613598,
    -0.0010277180699631572,
    8.451411122223362e-05,
    -4.5304013838176616e-06,
    1.413608572420344e-07,
    -1.9395069994487812e-09,
)
TAIL_END = 14.2
_HALF_LOG2E = 0.5 / math.log(2.0)
_LOG2_DENSITY = -0.5 * math.log2(2.0 * math.pi)
_LEAST_SIGMA = 2.0**-63


def normal_gated(x: Tensor, mu: float = 0.0, sigma: float = 1.0) -> Derivative:
    """Return ``x Phi(u)`` and its slope, ``u = (x - mu) / sigma``, in float32 for 16-bit results."""
    sigma = max(sigma, _LEAST_SIGMA)
    u = x if (mu, sigma) == (0.0, 1.0) else (x - mu) / sigma
    t = u.abs().clamp(max=TAIL_END)
    q = torch.full_like(t, 0.5 * TAIL[-1])
    for coefficient in reversed(TAIL[:-1]):
        q = q * t + 0.5 * coefficient
    root = torch.exp2(q)  # of the tail: a GPU takes powers of two below 2**-126 for 0, and x times it is larger
    part = torch.where(u.abs() > TAIL_END, 0.0, (x * root) * root)
    bounded = u.clamp(-TAIL_END, TAIL_END)
    density = torch.exp2(t * t * -_HALF_LOG2E + _LOG2_DENSITY)
    tail = root * root
    slope = torch.where(u > 0, 1.0 - tail, tail) + (bounded + mu / sigma) * density
    return torch.where(u > 0, x - part, part), slope
