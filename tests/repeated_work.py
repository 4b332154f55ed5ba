"""Work that torch and Lightning repeat at every call and that no test is about: a fifteenth of `make test`."""

import functools
import inspect
import sys
from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch._export import utils as export_utils
from torch._ops import OperatorBase


@functools.cache
def _has_cuda() -> bool:
    return torch.cuda.is_available()


def seed_torch(seed: int) -> None:
    """Seed as `torch.manual_seed` does, which without a GPU formats and keeps a traceback for each kind of device."""
    if _has_cuda():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def spare_torch() -> None:
    """Let an export make no type for each of 11,000 kernels that it sets, and look up composite operators once."""
    plain = OperatorBase.py_impl

    def py_impl(self: OperatorBase, key: object) -> Callable[[object], object]:
        if not isinstance(key, torch._C.DispatchKey) or key == torch._C.DispatchKey.Python or key in self.py_kernels:
            return plain(self, key)

        def inner(kernel):
            self.py_kernels[key] = kernel
            self._dispatch_cache.clear()
            return kernel

        return inner

    OperatorBase.py_impl = py_impl

    # It is called for every namespace of operators, 66 times an export, and takes two fifths of that of a small net.
    look_up, seen = export_utils._materialize_cpp_cia_ops, set()

    def look_up_once() -> None:
        if len(sys.modules) not in seen:  # a library that is imported later brings operators
            look_up()
            seen.add(len(sys.modules))

    export_utils._materialize_cpp_cia_ops = look_up_once


def spare_lightning() -> None:
    """Let Lightning look once for callbacks that packages bring, and not for source lines around its callers."""
    from lightning.pytorch.trainer.connectors import callback_connector
    from lightning.pytorch.utilities import model_helpers

    # Every Trainer reads the entry points of all installed packages, a file for each.
    callback_connector._load_external_callbacks = functools.cache(callback_connector._load_external_callbacks)
    # load_from_checkpoint looks for torch.jit in the names of files alone.
    model_helpers.inspect = SimpleNamespace(stack=lambda: inspect.stack(context=0))
