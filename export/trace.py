"""From a module to an ONNX graph: torch's exporter, without its chatter, and what it writes in another form.

Calls that the exporter does not translate, or translates to something else, are made in another form. Sizes that it
computes at every call are constants where the graph's shapes tell them.
"""

import contextlib
import functools
import importlib
import io
import logging
import os
import re
import threading
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir import convenience
from onnx_ir.passes import common as common_passes
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it
from torch.overrides import TorchFunctionMode

from lit_gelu.errors import ExportError
from lit_gelu.export.copying import Trial, random_message
from lit_gelu.export.inputs import BOUNDS, SCOPE, FlatModule, OpenSize
from lit_gelu.export.lowering.lowering_table import Constants
from lit_gelu.files import captured_stdout

_RANDOM = frozenset({
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
})  # fmt: skip
_INPUTS_OF_LIVE_DROPOUT = 3  # data, ratio, training_mode; in evaluation the exporter writes none of it
_SMALL = 2  # lower ends up to it are torch's own, which traces no size of 0 or 1
_one_at_a_time = threading.RLock()


def trace(flat: FlatModule, trial: Trial, opset: int, sizes: Sequence[OpenSize]) -> ir.Model:
    """Export a module to a graph whose open sizes have their names everywhere; `BOUNDS` are notes on them."""
    shapes = tuple(
        {size.axis: size.dim for size in sizes if size.place == place} or None for place in range(len(flat.call.names))
    )
    try:
        flat.mode = ExportableCalls
        with _one_at_a_time, _exporter_in_another_form(), _quiet():
            program = torch.onnx.export(
                flat,
                trial.tensors,
                dynamo=True,
                opset_version=opset,
                input_names=list(flat.call.names),
                output_names=list(trial.names),
                dynamic_shapes={"tensors": shapes},
                external_data=False,
                verbose=False,
                custom_translation_table=translations(),
            )
    except Exception as error:
        raise ExportError(_untranslated(flat, error)) from error
    finally:
        flat.mode = contextlib.nullcontext
    if program is None:
        raise ExportError("torch.onnx.export returned nothing.")
    model, fixed = program.model, {}
    if (exported := program.exported_program) is not None:
        model.meta[BOUNDS] = _bounds(exported, sizes)
        ranges = exported.range_constraints
        fixed = {str(symbol): str(span.lower) for symbol, span in ranges.items() if span.is_singleton()}
    _mend(model, flat)
    _name_sizes(model, sizes, fixed)
    if any(node.op_type in {"Shape", "Reshape"} for node in model.graph):
        fold_shape_arithmetic(model, {size.name for size in sizes if size.axis == 0 and flat.call.batched[size.place]})
    for name in [name for name in model.graph.initializers if name.startswith(f"{SCOPE}.")]:
        plain = name.removeprefix(f"{SCOPE}.")
        if plain not in model.graph.initializers:  # a module may have a child called as the preprocessing is here
            model.graph.initializers[name].name = plain
    return model


_FRAME = re.compile(r'File "([^"]+)", line (\d+), in \S+\n +(.+)')
_OF_EXPORT = tuple(f"{Path(file).parent}{os.sep}" for file in (__file__, torch.__file__))  # not the caller's


def _untranslated(flat: FlatModule, error: BaseException) -> str:
    """Say what torch's exporter does not translate, where that stands in the caller's code, and what to do."""
    frames: list[tuple[str, int, str]] = []  # file, line, code
    cause: BaseException | None = error
    while cause is not None:
        frames += [(f.filename, f.lineno or 0, f.line or "") for f in traceback.extract_tb(cause.__traceback__)]
        frames += [(file, int(line), code) for file, line, code in _FRAME.findall(str(cause))]
        reason, cause = str(cause).strip() or type(cause).__name__, cause.__cause__
    where = ""
    for file, line, code in frames:
        if not file.startswith((*_OF_EXPORT, "<")) and "onnxscript" not in file:
            where = f", in {Path(file).name}, line {line}: `{code.strip()}`"
    reason = " ".join(reason.partition("\n\n")[0].split()).rstrip(".")
    return (
        f"torch.onnx.export cannot translate {type(flat.model).__name__}: {reason}{where}. "
        "Write that part of forward in other operators of torch (torch.where where control flow depends on values in "
        "tensors), or move it out; remove parametrizations of the trained layer; give recurrent layers padded batches. "
        "Open sizes that are always equal need one name; leave out of dynamic_shapes= those that forward fixes."
    )


@contextlib.contextmanager
def _exporter_in_another_form() -> Iterator[None]:
    """Change what `_changes` names, until the end."""
    with contextlib.ExitStack() as stack:
        for owner, name, value in _changes():
            stack.callback(setattr, owner, name, vars(owner)[name])
            setattr(owner, name, value)
        yield


@functools.cache
def _changes() -> tuple[tuple[Any, str, Any], ...]:
    """Return what is another in torch's exporter and onnxscript while a module is exported: where, its name, and what.

    ``torch.onnx.export`` has some 500 translations, functions of onnxscript, and parses each anew: two thirds of the
    time of a small module's export. What it reads of a function depends on the function alone: it is kept.

    onnxscript leaves out ``x + c``, ``x - c``, ``x * c`` and ``x / c`` where c is 0 or 1 within 1e-8 and 1e-5, and so
    the epsilon of a norm (1e-8, as Helium's): a row of zeros becomes NaN. Only an exact 0 or 1 is left out.
    """
    # None of these names is documented (torch 2.11 to 2.15, onnxscript 0.6 to 0.7): another release may not have them,
    # and exports as it does.
    changes: list[tuple[Any, str, Any]] = []
    with contextlib.suppress(ImportError):
        traced = getattr(importlib.import_module("onnxscript.values"), "TracedOnnxFunction", None)
        parsed = vars(traced).get("function_ir") if traced else None
        if isinstance(parsed, property) and parsed.fget:
            changes.append((traced, "function_ir", property(functools.cache(parsed.fget))))
    with contextlib.suppress(ImportError):
        schemas = importlib.import_module("torch.onnx._internal.exporter._schemas")
        if signature := getattr(schemas, "op_signature_from_function", None):
            changes.append((schemas, "op_signature_from_function", functools.cache(signature)))
    with contextlib.suppress(ImportError):
        rules = importlib.import_module("onnxscript.rewriter.rules.common._no_op").rules
        constants = [value for rule in rules for node in rule._target_pattern for value in node.inputs]
        names = ("_rel_tol", "_abs_tol")
        changes += [(constant, name, 0.0) for constant in constants for name in names if name in vars(constant)]
    return tuple(changes)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter: it prints progress and graphs, logs its failed attempts, and warns of its own internals."""
    refuse = logging.Filter("no logger's name")  # lets nothing pass
    handlers = [handler for name in ("", "torch") for handler in logging.getLogger(name).handlers]
    with warnings.catch_warnings(), captured_stdout(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        for handler in handlers:
            handler.addFilter(refuse)
        try:
            yield
        finally:
            for handler in handlers:
                handler.removeFilter(refuse)


def _bounds(program: torch.export.ExportedProgram, sizes: Sequence[OpenSize]) -> list[str]:
    """Say which sizes a graph does not hold for although they are open: forward branches there, or refuses them."""
    # torch.export.export refuses a Dim that is wider than that. torch.onnx.export says nothing.
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    notes = {}
    for size in sizes:
        tensor = values[program.graph_signature.user_inputs[size.place]]
        symbol = getattr(getattr(tensor.shape[size.axis], "node", None), "expr", None)
        span = program.range_constraints.get(symbol)
        if span is None:
            continue
        least, most = size.bounds
        lower, upper = int(span.lower), int(span.upper) if span.upper.is_Integer else None
        ends = [
            *([f"from {lower}"] if lower > max(_SMALL, least or 0) else []),
            *([f"up to {upper}"] if upper is not None and (most is None or upper < most) else []),
        ]
        if ends:
            notes[size.name] = (
                f"the graph holds for {size.name!r} {' '.join(ends)}; elsewhere forward branches or fails."
            )
    return list(notes.values())


def _mend(model: ir.Model, flat: FlatModule) -> None:
    """Refuse a graph that draws random numbers; give values names of their own, and indices the type of ONNX's."""
    ports = (*model.graph.inputs, *model.graph.outputs)
    taken, keep = {value.name for value in ports}, {id(value) for value in ports}
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        live_dropout = node.op_type == "Dropout" and len(node.inputs) == _INPUTS_OF_LIVE_DROPOUT
        if node.op_type in _RANDOM or live_dropout:  # a trial run on zeros does not show it
            raise ExportError(random_message(flat.model, node.op_type))
        for value in node.outputs:  # torch names them after functions, and may give one the name of an output
            if value.name in taken and id(value) not in keep:
                value.name = f"{value.name}.value"
        places = node.inputs[1] if node.op_type in {"ScatterND", "GatherND"} else None  # int32, as of torch.istft
        if places is not None and places.dtype == ir.DataType.INT32:
            cast = ir.node("Cast", [places], attributes={"to": ir.DataType.INT64})
            cast.outputs[0].dtype, cast.outputs[0].shape = ir.DataType.INT64, places.shape
            node.prepend(cast)
            node.replace_input_with(1, cast.outputs[0])


def _name_sizes(model: ir.Model, sizes: Sequence[OpenSize], names: dict[str, str]) -> None:
    """Give open sizes their names in every shape, and those of one value that, by torch's names of them."""
    # torch calls a size s77 where several inputs share it, and one that a Dim.AUTO left open though it is fixed.
    for size in sizes:
        symbol = dim_of(model, size)
        if isinstance(symbol, str) and symbol.isidentifier():
            names.setdefault(symbol, size.name)
    within = {symbol: f"({name})" if "+" in name else name for symbol, name in names.items()}  # a sum in a product
    nodes = ir.traversal.RecursiveGraphIterator(model.graph)
    for value in [*model.graph.inputs, *(output for node in nodes for output in node.outputs)]:
        dims: list[int | str | None] = []
        for dim in value.shape or ():
            text = None if isinstance(dim, int) else dim.value
            name = text and (names.get(text) or re.sub(r"\b[A-Za-z_]\w*", lambda w: within.get(w[0], w[0]), text))
            dims.append(dim if isinstance(dim, int) else int(name) if name and name.isdecimal() else name)
        if value.shape is not None:
            value.shape = ir.Shape(dims)


def dim_of(model: ir.Model, size: OpenSize) -> int | str | None:
    """Return what a graph has at the place of a size: its name, or a number if it is fixed."""
    shape = model.graph.inputs[size.place].shape
    dim = None if shape is None else shape[size.axis]
    return dim.value if isinstance(dim, ir.SymbolicDim) else dim


# torch writes ``view`` and ``expand`` with targets that are computed from sizes at every call, and attention with a key
# whose sizes are taken apart and put together. Beside a GPU, onnxruntime runs such nodes on the CPU. In the target of a
# Reshape, 0 copies the size at the same place of the input, and one -1 is what is left; in that of an Expand, 1 leaves
# a size as it is. Sizes of one name are equal all over a graph (ONNX's IR, "Static tensor shapes"), and torch gives
# equal sizes one name, or one expression. onnxscript's own rule (``materialize_reshape_shape``) takes shapes with one
# open size alone.
Size = int | str | None  # a number; a name or an expression; not known


def fold_shape_arithmetic(model: ir.Model, may_be_empty: Collection[str] = ()) -> None:
    """Write targets of Reshape and Expand that follow from shapes as constants, and drop what nobody reads then."""
    # A size that may be 0, as that of a batch, is never copied beside a -1: nothing follows from 0 values.
    constants = Constants(model.graph)
    for node in filter(_is_standard, model.graph):
        y = node.outputs[0]
        if not y.is_graph_output() and (same := _same(node, constants)):
            convenience.replace_all_uses_with(y, same)
        elif node.op_type in {"Reshape", "Expand"} and (target := _target(node, may_be_empty)):
            node.replace_input_with(1, constants.integers(*target))
            node.attributes.pop("allowzero", None)
    common_passes.RemoveUnusedNodesPass()(model)


def reshape_target(
    old_shape: Sequence[Size], new_shape: Sequence[Size], may_be_empty: Collection[str] = ()
) -> list[int]:
    """Return a constant target for a Reshape between two shapes; nothing where sizes have to be computed."""
    unknown = [place for place, size in enumerate(new_shape) if not isinstance(size, int)]
    copied = {
        place for place in unknown if new_shape[place] is not None and new_shape[place] in old_shape[place : place + 1]
    }
    if len(unknown) == 1:
        copied = set()  # -1 does
    left = set(unknown) - copied
    copied_names = {name for place in copied for name in re.findall(r"\w+", str(new_shape[place]))}
    if 0 in new_shape or len(left) > 1 or (left and copied_names & set(may_be_empty)):
        return []
    return [size if isinstance(size, int) else -1 if place in left else 0 for place, size in enumerate(new_shape)]


def expand_target(old_shape: Sequence[Size], new_shape: Sequence[Size]) -> list[int]:
    """Return a constant target for an Expand between two shapes; nothing where sizes have to be computed."""
    before = [1] * (len(new_shape) - len(old_shape)) + list(old_shape)
    sizes = [1 if old == new is not None else new for old, new in zip(before, new_shape, strict=True)]
    return _numbers(sizes)


def sizes_in(value: ir.Value | None) -> list[Size]:
    """Return what a vector of sizes holds, as far as shapes tell; nothing for what is no such vector."""
    node = None if value is None else value.producer()
    constant = None if value is None else convenience.get_const_tensor(value)
    if constant is not None:
        holds_sizes = constant.dtype == ir.DataType.INT64 and len(constant.shape) == 1
        return constant.numpy().tolist() if holds_sizes else []
    if node is None or not _is_standard(node):
        return []
    if node.op_type == "Shape":
        start, end = (node.attributes[key].as_int() if key in node.attributes else None for key in ("start", "end"))
        return _sizes_of(node.inputs[0])[start:end]
    parts = [sizes_in(each) for each in node.inputs] if node.op_type in {"Concat", "Slice"} else []
    if not parts or not all(parts):
        return []
    if node.op_type == "Concat":
        return [size for part in parts for size in part]
    vector, starts, ends, *others = parts
    bounds = _numbers([starts[0], ends[0]])
    return vector[slice(*bounds)] if bounds and others[1:] in ([], [[1]]) else []  # axis 0 of one, without a step


def _sizes_of(value: ir.Value | None) -> list[Size]:
    shape = None if value is None else value.shape
    return [dim if isinstance(dim, int) else dim.value for dim in shape or ()]


def _numbers(sizes: Sequence[Size]) -> list[int]:
    numbers = [size for size in sizes if isinstance(size, int)]
    return numbers if len(numbers) == len(sizes) else []


def _new_shape(node: ir.Node) -> list[Size]:
    """Return the shape that a Reshape or Expand makes: the one that is noted, and what its target tells beside it."""
    inferred, vector_sizes = _sizes_of(node.outputs[0]), sizes_in(node.inputs[1])
    if len(inferred) != len(vector_sizes):
        return inferred
    vector_sizes = [
        size if isinstance(size, str) or (isinstance(size, int) and size > 0) else None for size in vector_sizes
    ]
    return [new if old is None else old for old, new in zip(inferred, vector_sizes, strict=True)]


def _same(node: ir.Node, constants: Constants) -> ir.Value | None:
    """Return what a node's output is without it: numbers, a Reshape's own input, a key that is transposed."""
    if node.op_type in {"Shape", "Slice", "Concat"} and (numbers := _numbers(sizes_in(node.outputs[0]))):
        return constants.integers(*numbers)
    if node.op_type != "Reshape":
        return None
    new_shape = _new_shape(node)
    if new_shape and None not in new_shape and new_shape == _sizes_of(node.inputs[0]):
        return node.inputs[0]
    return _transposed(node, new_shape)


def _transposed(node: ir.Node, new_shape: Sequence[Size]) -> ir.Value | None:
    """Return the transpose of the last two sizes that is written as Reshape to three sizes, Transpose, Reshape."""
    # torch's attention transposes keys so, whatever their rank.
    transpose = _made_by(node.inputs[0], "Transpose")
    first = None if transpose is None else _made_by(transpose.inputs[0], "Reshape")
    perm = None if transpose is None else transpose.attributes.get("perm")
    if transpose is None or first is None or perm is None or list(perm.as_ints()) != [0, 2, 1]:
        return None
    sizes = _sizes_of(first.inputs[0])
    swapped = [*sizes[:-2], *sizes[:-3:-1]]
    if None in sizes or _new_shape(first)[1:] != sizes[-2:] or new_shape != swapped:
        return None
    places = list(range(len(sizes)))
    transpose.replace_input_with(0, first.inputs[0])
    transpose.attributes["perm"] = ir.AttrInt64s("perm", [*places[:-2], *places[:-3:-1]])
    transpose.outputs[0].shape = ir.Shape(new_shape)
    return transpose.outputs[0]


def _made_by(value: ir.Value | None, operator: str) -> ir.Node | None:
    node = None if value is None else value.producer()
    alone = value is not None and len(value.uses()) == 1 and not value.is_graph_output()
    return node if node is not None and alone and node.op_type == operator and _is_standard(node) else None


def _is_standard(node: ir.Node) -> bool:
    return node.domain in {"", "ai.onnx"}


def _target(node: ir.Node, may_be_empty: Collection[str]) -> list[int]:
    """Return the constant target of a Reshape or Expand that computes its own; nothing if there is none."""
    # So for one that copies a size beside a -1, which torch writes for GroupNorm: of an empty batch nothing follows.
    old_shape, new_shape = _sizes_of(node.inputs[0]), _new_shape(node)
    target = node.inputs[1]
    is_constant = target is not None and convenience.get_const_tensor(target) is not None
    if target is None or not new_shape or (is_constant and not {0, -1}.issubset(sizes_in(target))):
        return []
    if node.op_type == "Expand":
        return expand_target(old_shape, new_shape)
    return reshape_target(old_shape, new_shape, may_be_empty)


_REFLECTED = (
    Tensor.__rsub__, Tensor.__rdiv__, Tensor.__rtruediv__, Tensor.__rpow__, Tensor.__rfloordiv__, Tensor.__rmod__,
    torch.rsub,
)  # fmt: skip
_RANK = 4  # of the attention that torch's exporter takes


class ExportableCalls(TorchFunctionMode):
    """While active, calls are made in a form that torch's exporter translates; the values are the same."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, or its other form."""
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return attention(*args, **kwargs)
        reflected = args[1::-1] if func in _REFLECTED else args[:2]
        number, mask = reflected if len(reflected) == 2 else (None, None)
        is_whole = isinstance(mask, Tensor) and not (mask.is_floating_point() or mask.is_complex())
        if isinstance(number, float) and is_whole:
            # The exporter cannot promote ``1.0 - mask`` for a mask of whole numbers.
            args = (*(torch.as_tensor(a, dtype=torch.get_default_dtype()) for a in args[:2]), *args[2:])
        return func(*args, **kwargs)


def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *args: Any, **kwargs: Any
) -> Tensor:
    """Return ``scaled_dot_product_attention``: of four dimensions whatever the rank, and 0 where all is masked."""
    # The exporter gives what is masked all over the mean of all values for a Boolean mask, and NaN for one with -inf.
    extra = query.ndim - _RANK
    lead = query.shape[: extra + 1]
    masked = None
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.where(attn_mask, 0.0, -torch.inf).to(query.dtype)
        masked = attn_mask.amax(-1, keepdim=True) == -torch.inf
        if extra > 0 and attn_mask.ndim > _RANK - 1:
            attn_mask = attn_mask.expand(*query.shape[:-1], key.shape[-2]).flatten(0, extra)
    if extra > 0:
        # Keys of fewer groups than queries are repeated, as torch does.
        parts = (t if t.shape[: extra + 1] == lead else t.expand(*lead, *t.shape[extra + 1 :]) for t in (key, value))
        query, key, value = (tensor.flatten(0, extra) for tensor in (query, *parts))
    else:
        query, key, value = (tensor[(None,) * -extra] for tensor in (query, key, value))
    result = F.scaled_dot_product_attention(query, key, value, attn_mask, *args, **kwargs)
    result = result.reshape(*lead, *result.shape[1:]) if extra > 0 else result[(0,) * -extra]
    return result if masked is None else result.masked_fill(masked, 0.0)


def _grouped_matmul(input: Any, weight: Any, offs: Any) -> Any:  # noqa: A002 - the operator's own name for it
    """Return the rows of each group times the matrix of that group; groups end at ``offs``."""
    from onnxscript.onnx_opset import opset20

    op: Any = opset20  # its types ask for one element type of a tensor that may have several
    ends = op.Cast(offs, to=7)
    start, products = op.Constant(value_ints=[0]), []
    for i in range(weight.shape[0]):
        end = op.Slice(ends, op.Constant(value_ints=[i]), op.Constant(value_ints=[i + 1]))
        rows = op.Slice(input, start, end, op.Constant(value_ints=[0]))
        products.append(op.MatMul(rows, op.Gather(weight, op.Constant(value_int=i))))
        start = end
    return op.Concat(*products, axis=0)


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return how operators of other libraries are written in ONNX, of those libraries that are imported."""
    with contextlib.suppress(AttributeError):
        return {torch.ops.transformers.grouped_mm_fallback.default: _grouped_matmul}
    return {}
