"""Kernels that torch.compile makes of a function and of its derivative, which `torch.func` finds.

The function is traced once, on float32, and every operation must be elementwise. Then it may be computed in the order
in which the elements lie in memory, and one compiled graph serves all shapes and layouts.
"""

from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from lit_gelu.activations.gpu.autograd import Kernel, Plain
from lit_gelu.activations.gpu.routes import Route

BACKEND = "inductor"  # of torch.compile
_ROW = 64  # a known divisor of the number of elements: without one the compiler reads 16-bit numbers one by one

_aten = torch.ops.aten
# Without torch's tag for elementwise operations.
_ELEMENTWISE = {_aten._to_copy.default, _aten.copy_.default, _aten.full_like.default}
_NUMBERS = {_aten.scalar_tensor.default, _aten.full.default, _aten.lift_fresh_copy.default}

_refused: dict[Hashable, str] = {}  # by the key of a function: why it has no kernel, nothing if it has one
_traces: dict[Hashable, fx.GraphModule] = {}  # until they are compiled
_compiled: dict[Hashable, Callable[..., Tensor]] = {}


class NotElementwiseError(Exception):
    """What a function does takes more than one element; the message says which operation does."""


@dataclass(frozen=True, eq=False)
class GeneratedKernel(Kernel):
    """The kernel of a function that is written in operations of torch."""

    name: str
    function: Plain

    @property
    def key(self) -> Hashable:
        """What the function depends on: of two with the same key one is compiled."""
        return self.function

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
        key = self.key
        if key not in _refused:
            _refused[key] = ""
            try:
                _check_output(self.function, x)
                for what in ("value", "by_x"):
                    graph = _traced(self.function, x, what)
                    _check_operations(graph)
                    _traces[key, what, x.dtype, x.device] = graph
            except Exception as error:  # noqa: BLE001  it runs what a user wrote
                _refused[key] = f"{self.name!r} has no kernel: {error}"
        return _refused[key]

    def forward(self, x: Tensor, /, *_: Tensor) -> Tensor:
        """Return the function of x."""
        return self._computed("value", x)

    def backward(self, gradient: Tensor, x: Tensor, /, *_: Tensor) -> tuple[Tensor, ...]:
        """Return the gradient by x."""
        return (self._computed("by_x", x, gradient),)

    def give_up(self, error: Exception) -> None:
        """Remember that this kernel failed; others are not concerned."""
        _refused[self.key] = f"the kernel of {self.name!r} failed before: {type(error).__name__}: {error}"

    def _computed(self, what: str, x: Tensor, *gradient: Tensor) -> Tensor:
        from lit_gelu.activations.gpu.launch import dense, laid_out_as

        x = dense(x)
        if x.numel() == 0:
            return torch.empty_like(x)
        width = 1 if x.numel() % _ROW else _ROW
        rows = [_rows(each, width) for each in (x, *(laid_out_as(each, x) for each in gradient))]
        place = (self.key, what, x.dtype, x.device)
        run = _compiled.get((place, width))
        if run is None:
            graph = _traces.pop(place, None) or _traced(self.function, x, what)
            run = _compiled[place, width] = torch.compile(graph.forward, backend=BACKEND)
            for each in rows:
                torch._dynamo.maybe_mark_dynamic(each, 0)
        return _laid_out(run(*rows), x)


def _traced(function: Plain, x: Tensor, what: str) -> fx.GraphModule:
    """Return the operations of the function, or of the gradient by x, for tensors of two dimensions like x."""
    # In a thread, which has nothing of what is set for this one: autocast, hooks on saved tensors, modes, grad mode.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_traced_here, function, x, what).result()


def _traced_here(function: Plain, x: Tensor, what: str) -> fx.GraphModule:
    from torch.fx.experimental.proxy_tensor import make_fx

    def value(x: Tensor) -> Tensor:
        return function(x.float()).to(x.dtype)

    def by_x(x: Tensor, gradient: Tensor) -> Tensor:
        by_wide: Tensor = torch.func.vjp(function, x.float())[1](gradient.float())[0]
        return by_wide.to(x.dtype)

    example = torch.zeros((3, 5), dtype=x.dtype, device=x.device)
    decompositions = torch.export.default_decompositions()
    # Two tensors: of one alone both arguments would be the same to the trace.
    examples = (example,) if what == "value" else (example, example.clone())
    trace = make_fx(value if what == "value" else by_x, decompositions, "symbolic", _allow_non_fake_inputs=True)
    with torch.no_grad():
        return trace(*examples)


def _check_output(function: Plain, x: Tensor) -> None:
    """Refuse a function whose result is not like its argument."""
    example = torch.zeros((3, 5), dtype=x.dtype, device=x.device)
    with torch.no_grad():
        y = function(example)
    if not isinstance(y, Tensor) or y.shape != example.shape or y.dtype != x.dtype:
        given = f"{y.dtype} of shape {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
        raise NotElementwiseError(f"it makes {given} of {x.dtype} of shape {tuple(example.shape)}")


def _check_operations(graph: fx.GraphModule) -> None:
    """Refuse a graph in which an element's result may depend on another element, on its place or on chance."""
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            held = getattr(graph, node.target)
            if held.dim() or held.requires_grad:
                raise NotElementwiseError("it takes a tensor that is not its argument")
        elif node.op == "call_function" and not _is_elementwise(node):
            raise NotElementwiseError(f"{node.target} takes more than one element")


def _is_elementwise(node: fx.Node) -> bool:
    if node.target is _aten.sym_size.int:  # the shape of a tensor of one and the same number
        return all(user.target in _NUMBERS for user in node.users)
    tags = getattr(node.target, "tags", ())
    return node.target in _ELEMENTWISE | _NUMBERS or (
        torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags
    )


def _rows(x: Tensor, width: int) -> Tensor:
    """Return the elements of a dense tensor as they lie in memory, so many in a row."""
    return x.as_strided((x.numel() // width, width), (width, 1))


def _laid_out(rows: Tensor, x: Tensor) -> Tensor:
    """Return elements as they lie in memory as a tensor with the strides of x, which is no view of another."""
    rows = rows.contiguous()
    if rows.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
        rows = rows.clone()
    return rows.new_empty(0).set_(rows.untyped_storage(), rows.storage_offset(), x.shape, x.stride())
