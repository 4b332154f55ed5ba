"""What the configuration of a folder says of activations, in its own words."""

from collections.abc import Iterator, Mapping
from typing import Any

_KEYS = ("hidden_act", "hidden_activation", "activation_function", "activation", "act_layer", "feed_forward_proj")
_QUICK = "quick_gelu"


def declared_activations(configuration: Mapping[str, Any]) -> dict[str, str]:
    """Return what a configuration says of activations, by the path of the key: ``vision_config.hidden_act``."""
    return dict(_declared(configuration, ""))


def _declared(configuration: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    for key, value in configuration.items():
        if isinstance(value, Mapping):
            yield from _declared(value, f"{path}{key}.")
        elif key in _KEYS and isinstance(value, str):
            yield f"{path}{key}", value
        elif key == _QUICK and isinstance(value, bool):
            yield f"{path}{key}", _QUICK if value else "gelu"


def declared_at(name: str, declared: Mapping[str, str]) -> str:
    """Return what is declared for a site: by the part of the model whose name the key's path begins with, if any."""
    # open_clip's flag is of its own blocks' GELU, not of its ResNets and of models of timm.
    declared = {path: value for path, value in declared.items() if name.endswith("gelu") or not path.endswith(_QUICK)}
    for path, value in declared.items():
        part = path.rpartition(".")[0].rpartition(".")[2].removesuffix("_config").removesuffix("_cfg")
        if part and part in name:
            return f"{path}={value}"
    plain = [f"{path}={value}" for path, value in declared.items() if "." not in path]
    return plain[0] if plain else next((f"{p}={v}" for p, v in declared.items() if len(declared) == 1), "")
