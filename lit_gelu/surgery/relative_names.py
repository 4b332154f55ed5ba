"""Names of sites as a module inside the model sees them: they stay right when the model becomes a part of another."""

import re


def relative_name(name: str, base: str) -> str:
    """Return the name of a site relative to a module.

    Args:
        name: The site's name in the model.
        base: The module's name in the model; empty for the model itself.

    Returns:
        The rest of the name, after one ``^`` for every level that it is outside the module.

    Example:
        >>> relative_name("blocks.0:gelu", "blocks.0"), relative_name("a.act#1", "b.mlp")
        (':gelu', '^^a.act#1')
    """
    path, tail = _split(name)
    own = _parts(base)
    common = next((i for i, (a, b) in enumerate(zip(path, own, strict=False)) if a != b), min(len(path), len(own)))
    return "^" * (len(own) - common) + ".".join(path[common:]) + tail


def absolute_name(relative: str, base: str) -> str:
    """Return the name in the model of what `relative_name` names.

    Args:
        relative: What `relative_name` returned.
        base: The name that the module has now.

    Returns:
        The name.

    Example:
        >>> absolute_name(":gelu", "encoder.blocks.0"), absolute_name("^^a.act#1", "model.b.mlp")
        ('encoder.blocks.0:gelu', 'model.a.act#1')
    """
    rest = relative.lstrip("^")
    own = _parts(base)
    path, tail = _split(rest)
    return ".".join([*own[: max(0, len(own) - (len(relative) - len(rest)))], *path]) + tail


def _parts(path: str) -> list[str]:
    return path.split(".") if path else []


def _split(name: str) -> tuple[list[str], str]:
    """Return the parts of a site's path, and what names a call behind it."""
    path = re.split(r"[:#]", name, maxsplit=1)[0]
    return _parts(path), name[len(path) :]
