"""How a module calls a function that it holds as an attribute: by its source, whether or not a sample reaches it."""

import ast
import inspect
import types
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from lit_gelu.activations import ActivationSpec
from lit_gelu.errors import SwapError
from lit_gelu.surgery import source
from lit_gelu.surgery.changes import RewrittenCall
from lit_gelu.surgery.places import CallPlace, first_argument, method_name, place_of, wrapped_functions
from lit_gelu.surgery.sites import ActivationSite


@dataclass(frozen=True)
class HeldCalls:
    """What becomes of the calls when a module takes the function's place."""

    edits: tuple[RewrittenCall, ...]  # calls that give more than the input, which the module would not take
    doubt: str  # what the source does not tell, a sentence


def calls_of_attribute(site: ActivationSite, declared: ActivationSpec) -> HeldCalls:
    """Find the calls of a function that a module holds; ``declared`` is its spec without further arguments."""
    # self.act(x, inplace=True) would fail with a module, which takes its input alone. Such calls are written out in the
    # methods of the module's class mostly; what the class hands on to others cannot be known.
    _require_input_alone(site, declared)
    attribute, cls = site.name.rpartition(".")[2], type(site.module)
    edits: list[RewrittenCall] = []
    doubts: list[str] = []
    for code in _methods_naming(cls, attribute):
        try:
            function = source.function_at(code)
        except source.SourceError as reason:
            doubts.append(str(reason))
            continue
        for node, call in _uses(function, code, attribute):
            if call is None:
                doubts.append(f"{code.co_qualname} hands it on in line {node.lineno}")
            elif len(call.args) != 1 or call.keywords or isinstance(call.args[0], ast.Starred):
                edits.append(RewrittenCall(_place(site, call, code), attribute, attribute))
    why = "; ".join(dict.fromkeys(doubts))
    doubt = f"Whether all calls of {site.name!r} give the input alone is not known: {why}." if why else ""
    return HeldCalls(tuple(edits), doubt)


def _require_input_alone(site: ActivationSite, declared: ActivationSpec) -> None:
    """Refuse an attribute that was called with more than its input from elsewhere than its module's methods."""
    for call in site.calls or ():
        seen = call.seen
        elsewhere = isinstance(seen.place, str) or seen.owner is not site.module
        if elsewhere and any(spec != declared for spec in seen.specs):
            reason = seen.place if isinstance(seen.place, str) else f"that is in {type(seen.owner).__name__}"
            raise SwapError(
                f"{site.name!r} cannot become a module, which takes its input alone: at {call.where} it is called as "
                f"{seen.specs[0]}, and {reason}. Have it called with the input alone."
            )


def _methods_naming(cls: type, attribute: str) -> Iterator[types.CodeType]:
    """Yield the code of every function of a class, the inherited ones among them, in which a name occurs."""
    for owner in cls.__mro__:
        if owner in {nn.Module, object}:
            continue
        for value in vars(owner).values():
            accessor = value.fget if isinstance(value, property) else value
            if not inspect.isfunction(accessor):
                continue
            code = list(wrapped_functions(accessor))[-1].__code__
            if code.co_argcount and any(attribute in inner.co_names for inner in source.codes_in(code)):
                yield code


def _uses(function: ast.AST, code: types.CodeType, attribute: str) -> Iterator[tuple[ast.Attribute, ast.Call | None]]:
    """Yield where a method reads an attribute of its module, with the call if it calls it there; no comparisons."""
    parents = {child: parent for parent in ast.walk(function) for child in ast.iter_child_nodes(parent)}
    for node in ast.walk(function):
        if not (isinstance(node, ast.Attribute) and node.attr == attribute and isinstance(node.ctx, ast.Load)):
            continue
        if not (isinstance(node.value, ast.Name) and node.value.id == code.co_varnames[0]):
            continue
        parent = parents.get(node)
        if isinstance(parent, ast.Call) and parent.func is node:
            yield node, parent
        elif not isinstance(parent, (ast.Compare, ast.UnaryOp, ast.FormattedValue)) and not (
            isinstance(parent, (ast.If, ast.IfExp)) and parent.test is node
        ):
            yield node, None


def _place(site: ActivationSite, call: ast.Call, code: types.CodeType) -> CallPlace:
    """Return the place of a call that is to be written anew; `SwapError` if it cannot be."""
    try:
        return place_of(call, first_argument(call), method_name(type(site.module), code), code)
    except SwapError as reason:
        raise SwapError(
            f"{site.name!r} cannot become a module, which takes its input alone: {ast.unparse(call)!r}, in line "
            f"{call.lineno} of {code.co_qualname}, gives it more, and cannot be written anew: {reason}."
        ) from reason
