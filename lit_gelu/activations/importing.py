"""The one place where the text of a spec becomes an import: for specs of code, of the command line and of YAML.

What reads files does not come here; see `lit_gelu.activations.stored_specs`.
"""

import importlib
from typing import Any

from lit_gelu.activations.errors import ActivationSpecError
from lit_gelu.errors import shown


def import_object(path: object) -> Any:
    """Import the class or function that a dotted path names.

    Args:
        path: ``package.module.Name``.

    Returns:
        The object.

    Raises:
        ActivationSpecError: If there is no such module or no such name in it.

    Example:
        >>> import_object("torch.nn.ELU").__name__
        'ELU'
    """
    if not isinstance(path, str) or "." not in path or not all(map(str.isidentifier, path.split("."))):
        raise ActivationSpecError(f"class_path={shown(path)} is no dotted path. Write 'package.module.ClassName'.")
    module_path, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module_path), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ActivationSpecError(
            f"Cannot import {shown(path)}: {error}. Is the package installed and the name right?"
        ) from error
