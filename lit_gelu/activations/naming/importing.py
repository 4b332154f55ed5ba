"""Specs of code, of the command line and of YAML: classes, functions, modules, and dotted paths, which are imported.

This is the one place where the text of a spec becomes an import. What reads files does not come here; see
`lit_gelu.activations.naming.stored`.
"""

import copy
import functools
import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from lit_gelu.activations.errors import ActivationArgumentError, ActivationSpecError
from lit_gelu.activations.naming.entry import Resolved
from lit_gelu.activations.naming.forms import FunctionActivation, unfolded
from lit_gelu.activations.naming.name_table import Names
from lit_gelu.activations.naming.spec import ACCEPTED, ActivationSpec, dotted_path, merged, opaque, read_spec
from lit_gelu.activations.naming.stored import comes_from_file, of_class, stored_activation
from lit_gelu.errors import message_of, shown


def resolved(registry: Names, spec: Any, kwargs: dict[str, Any]) -> Resolved:
    """Resolve any form of spec; anything else raises `ActivationSpecError`."""
    if isinstance(spec, (str, Mapping)) and not isinstance(spec, nn.Module):
        if comes_from_file(spec):
            return stored_activation(registry, spec, kwargs)
        parsed = read_spec(spec)
        if isinstance(parsed, ActivationSpec):
            return registry.named(parsed, kwargs)
        return _of_callable(registry, import_object(parsed.path), merged(parsed.path, dict(parsed.arguments), kwargs))
    return _of_callable(registry, spec, kwargs)


def _of_callable(registry: Names, target: Any, kwargs: dict[str, Any]) -> Resolved:
    if isinstance(target, nn.Module):
        if kwargs:
            raise ActivationArgumentError(
                f"{type(target).__name__} is a module already, so {', '.join(kwargs)} cannot be set. Give its class or "
                "its name."
            )
        return Resolved(registry.spec_of(target), lambda: copy.deepcopy(target))
    if isinstance(target, type):
        return of_class(registry, target, kwargs)
    if isinstance(target, functools.partial):
        called, positional, keywords = unfolded(target)
        if isinstance(called, type):
            return of_class(registry, called, {**_by_keyword(called, positional, keywords), **kwargs})
        if not positional:
            return _of_callable(registry, called, {**keywords, **kwargs})
    if not callable(target):
        raise ActivationSpecError(
            f"{shown(target)} ({type(target).__name__}) does not name an activation. Accepted: {ACCEPTED}."
        )
    path = dotted_path(target)
    unregistered = Resolved(opaque(path, kwargs), lambda: FunctionActivation(target, path, kwargs))
    return registry.named_function(target, kwargs) or unregistered


def _by_keyword(cls: type, positional: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that a partial gives a class, all by keyword, as a spec has them."""
    if not positional or not issubclass(cls, nn.Module):  # which `of_class` refuses
        return keywords
    path = dotted_path(cls)
    try:
        signature = inspect.signature(cls)
        signature.bind_partial(*positional, **keywords)  # refuses what is given twice
    except (TypeError, ValueError) as error:
        raise ActivationArgumentError(f"{path} cannot be built: {message_of(error)}.") from error
    arguments = signature.bind_partial(*positional).arguments
    if any(signature.parameters[name].kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD for name in arguments):
        raise ActivationArgumentError(
            f"{path} takes arguments by position that have no keyword, so a functools.partial of it is not accepted. "
            "Give a torch.nn.Module that is built already."
        )
    return {**arguments, **keywords}


def import_object(path: object) -> Any:
    """Import the class or function that a dotted path names; what cannot be imported raises `ActivationSpecError`."""
    if not isinstance(path, str) or "." not in path or not all(map(str.isidentifier, path.split("."))):
        raise ActivationSpecError(f"class_path={shown(path)} is no dotted path. Write 'package.module.ClassName'.")
    module_path, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module_path), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ActivationSpecError(
            f"Cannot import {shown(path)}: {error}. Is the package installed and the name right?"
        ) from error
