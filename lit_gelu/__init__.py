"""Activation functions for PyTorch Lightning: choose, swap, measure and export them to ONNX.

Its parts are imported when they are first used. ``lit_gelu.activations``, ``lit_gelu.surgery`` and
``lit_gelu.curvature`` need torch alone, ``lit_gelu.data``, ``lit_gelu.tasks``, ``lit_gelu.replicas``,
``lit_gelu.callbacks`` and ``lit_gelu.export`` what they are for.
"""

import importlib
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lit_gelu import activations, curvature, surgery

__version__ = version("lit-gelu")
__all__ = ["__version__", "activations", "curvature", "surgery"]

# In a checkout callbacks/ and export/ lie beside this folder, in an installed package inside it. Python that is started
# in a clone takes this folder. (Only under this name: a folder on its own path has no end for what walks packages.)
_folder = Path(__file__).parent
if __name__ == "lit_gelu" and not (_folder / "export").is_dir() and (_folder.parent / "pyproject.toml").is_file():
    __path__.append(str(_folder.parent))

_ON_FIRST_USE = frozenset({
    *("activations", "callbacks", "choose", "curvature", "data", "export"),
    *("kernels", "replicas", "report", "surgery", "tasks"),
})


def __getattr__(name: str) -> ModuleType:
    """Import a part of the package when it is first used: torch, Lightning and onnx take seconds to load."""
    if name in _ON_FIRST_USE:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ON_FIRST_USE})
