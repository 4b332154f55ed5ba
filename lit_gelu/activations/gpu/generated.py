"""Kernels that torch.compile makes of a function and of its derivative, which `torch.func` finds.

The function is traced once, on float32, and every operation must be elementwise. Then it may be computed in the order
in which the elements lie in memory, and one compiled graph serves all shapes and layouts.
"""

import functools
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType
from typing import cast

import torch
from torch import Tensor, fx

from lit_gelu.activations.gpu.autograd import Kernel, Plain
from lit_gelu.activations.gpu.routes import Route

BACKEND = "inductor"  # of torch.compile
_ROW = 64  # a known divisor of the number of elements: without one the compiler reads 16-bit numbers one by one

_aten = torch.ops.aten
# Without the tag for elementwise operations in all torch versions that this runs on.
_ELEMENTWISE = {_aten._to_copy.default, _aten.copy_.default, _aten.full_like.default, _aten.leaky_relu.default}
_NUMBERS = {_aten.scalar_tensor.default, _aten.full.default, _aten.lift_fresh_copy.default}

_Run = Callable[..., tuple[Tensor, ...]]
_refused: dict[Hashable, str] = {}  # by the key of a function: why it has no kernel, nothing if it has one
_traces: dict[Hashable, fx.GraphModule] = {}  # until they are compiled
_runs: dict[Hashable, _Run] = {}  # by the same and the width of rows
_codes: dict[Hashable, _Run] = {}  # by the operations: a module in training and in evaluation shares them


@functools.cache  # an import statement takes microseconds at each call
def _launch() -> ModuleType:
    from lit_gelu.activations.gpu import launch

    return launch


class NotElementwiseError(Exception):
    """What a function does takes more than one element; the message says which operation does."""


@dataclass(frozen=True, eq=False)
class GeneratedKernel(Kernel):
    """The kernel of a function that is written in operations of torch; each of its parameters is one number."""

    name: str
    function: Plain

    @property
    def key(self) -> Hashable:
        """What the function depends on beside its arguments: of two with the same key one is compiled."""
        return self.function

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The tensors that the function is called with after x."""
        return ()

    def route(self, x: Tensor) -> Route:
        """Return which code computes the function of x: torch's, if it cannot be traced."""
        found = super().route(x)
        if found.code != "kernel":
            return found
        if torch._C._len_torch_dispatch_stack():
            return Route("torch", "a dispatch mode watches torch's own operators")
        why = self.lacks(x)
        return Route("torch", why) if why else found

    def lacks(self, x: Tensor) -> str:
        """Return why the function has no kernel for tensors like x; nothing if it has one."""
        parameters = self.parameters
        case = self.key, tuple(parameter.shape for parameter in parameters)
        if case not in _refused:
            _refused[case] = ""
            try:
                _check_output(self.function, x, parameters)
                for what in ("value", "gradients"):
                    graph = _traced(self.function, what, x, parameters)
                    _check_operations(graph)
                    _traces[self._place(what, x, parameters)] = graph
            except Exception as error:  # noqa: BLE001  it runs what a user wrote
                _refused[case] = f"{self.name!r} has no kernel: {error}"
        return _refused[case]

    def forward(self, x: Tensor, /, *parameters: Tensor) -> Tensor:
        """Return the function of x."""
        x = _launch().dense(x)
        return self._computed("value", x, (), parameters)[0] if x.numel() else torch.empty_like(x)

    def backward(self, gradient: Tensor, x: Tensor, /, *parameters: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients by x and by the parameters."""
        x = _launch().dense(x)
        if x.numel() == 0:
            return tuple(map(torch.zeros_like, (x, *parameters)))
        return self._computed("gradients", x, (_launch().laid_out_as(gradient, x),), parameters)

    def give_up(self, error: Exception) -> None:
        """Remember that this kernel failed; others are not concerned."""
        why = f"the kernel of {self.name!r} failed before: {type(error).__name__}: {error}"
        _refused[self.key, tuple(parameter.shape for parameter in self.parameters)] = why

    def _place(self, what: str, x: Tensor, parameters: tuple[Tensor, ...]) -> tuple[Hashable, ...]:
        """Return under what a graph is kept."""
        return self.key, what, x.dtype, x.device, tuple((each.shape, each.dtype) for each in parameters)

    def _computed(
        self, what: str, x: Tensor, gradient: tuple[Tensor, ...], parameters: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """Compute a graph of dense tensors."""
        width = 1 if x.numel() % _ROW else _ROW
        rows = [_rows(each, width) for each in (x, *gradient)]
        place = self._place(what, x, parameters)
        run = _runs.get((place, width))
        if run is None:
            graph = _traces.pop(place, None) or _traced(self.function, what, x, parameters)
            run = _runs[place, width] = _compiled(graph, (width, *place[2:]))
            for each in rows:
                torch._dynamo.maybe_mark_dynamic(each, 0)
        first, *others = run(*rows, *parameters)
        return _laid_out(first, x), *others


def _compiled(graph: fx.GraphModule, inputs: tuple[Hashable, ...]) -> _Run:
    """Compile a graph, or find what was compiled of the same operations."""
    held = graph.graph.find_nodes(op="get_attr")  # tensors, which the code names but does not hold
    code = (graph if held else graph.code), inputs
    if code not in _codes:
        _codes[code] = torch.compile(graph.forward, backend=BACKEND)
    return _codes[code]


def _traced(function: Plain, what: str, x: Tensor, parameters: tuple[Tensor, ...]) -> fx.GraphModule:
    """Return the operations of the function, or of its gradients, for tensors of two dimensions like x."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    # On a machine without CUDA torch 2.11 ends the process if the thread in which such a mode was first on has ended.
    with FakeTensorMode():
        pass
    # In a thread, which has nothing of what is set for this one: autocast, hooks on saved tensors, modes, grad mode.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_traced_here, function, what, x, parameters).result()


def _traced_here(function: Plain, what: str, x: Tensor, parameters: tuple[Tensor, ...]) -> fx.GraphModule:
    from torch.fx.experimental.proxy_tensor import make_fx

    def value(x: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        return (function(x.float(), *(each.float() for each in parameters)).to(x.dtype),)

    def gradients(x: Tensor, gradient: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        given = x, *parameters
        found = torch.func.vjp(function, *(each.float() for each in given))[1](gradient.float())
        return tuple(by.to(each.dtype) for by, each in zip(found, given, strict=True))

    # Each argument is a tensor of its own: of one tensor all would be the same to the trace.
    x, gradient = (torch.zeros((3, 5), dtype=x.dtype, device=x.device) for _ in range(2))
    examples = (x, *(each.detach().clone() for each in parameters))
    decompositions = {**torch.export.default_decompositions()}
    with torch.no_grad():
        if what == "value":
            return make_fx(value, decompositions, "symbolic", _allow_non_fake_inputs=True)(*examples)
        trace = make_fx(gradients, decompositions, "symbolic", _allow_non_fake_inputs=True)
        return trace(x, gradient, *examples[1:])


def _check_output(function: Plain, x: Tensor, parameters: tuple[Tensor, ...]) -> None:
    """Refuse parameters that differ between elements, and a function whose result is not like x."""
    if any(each.numel() != 1 for each in parameters):
        raise NotElementwiseError("it has a parameter of more than one number")
    example = torch.zeros((3, 5), dtype=x.dtype, device=x.device)
    with torch.no_grad():
        y = function(example, *parameters)
    if not isinstance(y, Tensor) or y.shape != example.shape or y.dtype != x.dtype:
        given = f"{y.dtype} of shape {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
        raise NotElementwiseError(f"it makes {given} of {x.dtype} of shape {tuple(example.shape)}")


def _check_operations(graph: fx.GraphModule) -> None:
    """Refuse a graph whose first result at an element may depend on another element, on its place or on chance."""
    (results,) = cast("tuple[tuple[fx.Node, ...]]", graph.graph.output_node().args)
    waiting, seen = [results[0]], set[fx.Node]()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        waiting += node.all_input_nodes
        if node.op == "get_attr":
            held = getattr(graph, str(node.target))
            if held.dim() or held.requires_grad:
                raise NotElementwiseError("it takes a tensor that is not its argument")
        elif node.op == "call_function" and not _is_elementwise(node):
            raise NotElementwiseError(f"{node.target} takes more than one element")


def _is_elementwise(node: fx.Node) -> bool:
    if node.target is _aten.sym_size.int:  # the shape of a tensor of one and the same number
        return all(user.target in _NUMBERS for user in node.users)
    tags = getattr(node.target, "tags", ())
    if torch.Tag.nondeterministic_seeded in tags:
        return False
    tensors = [value for each in node.all_input_nodes if isinstance(value := each.meta.get("val"), Tensor)]
    of_numbers = bool(tensors) and all(value.numel() == 1 for value in tensors)  # such as a parameter's new shape
    return node.target in _ELEMENTWISE | _NUMBERS or torch.Tag.pointwise in tags or of_numbers


def _rows(x: Tensor, width: int) -> Tensor:
    """Return the elements of a dense tensor as they lie in memory, so many in a row."""
    return x.as_strided((x.numel() // width, width), (width, 1))


def _laid_out(rows: Tensor, x: Tensor) -> Tensor:
    """Return elements as they lie in memory as a tensor with the strides of x, which is no view of another."""
    rows = rows.contiguous()
    return rows.new_empty(0).set_(rows.untyped_storage(), rows.storage_offset(), x.shape, x.stride())
