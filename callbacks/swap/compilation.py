"""What ``torch.compile`` makes of a swap: every distinct activation costs a graph."""

import sys

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import nn


def is_compiled(pl_module: LightningModule) -> bool:
    """Return whether a module, or one inside it, was compiled."""
    if "torch._dynamo" not in sys.modules:  # otherwise nothing is compiled, and asking would import it
        return False
    return getattr(pl_module, "_compiler_ctx", None) is not None or any(
        isinstance(module, torch._dynamo.OptimizedModule) or module._compiled_call_impl is not None
        for module in nn.Module.modules(pl_module)
    )


def compiled_graphs() -> int:
    """Return how many graphs ``torch.compile`` has built in this process."""
    if "torch._dynamo" not in sys.modules:
        return 0
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


class CompilationCounter:
    """Counts the graphs that ``torch.compile`` builds because of a swap, and says so."""

    def __init__(self) -> None:
        # Graphs built since the swap, up to the end of its first batch; ``None`` before, or where nothing is compiled.
        self.graphs: int | None = None
        self._before: int | None = None

    def start(self, pl_module: LightningModule) -> None:
        """Count from now on, if the module is compiled."""
        self._before = compiled_graphs() if is_compiled(pl_module) else None

    def report(self) -> None:
        """Say how many graphs there were; called at the end of a batch, it does nothing unless `start` was called."""
        if self._before is not None:
            self.graphs, self._before = compiled_graphs() - self._before, None
            rank_zero_info(f"ActivationSwap: torch.compile built {self.graphs} graphs for the new activations.")


def warn_about_limit(pl_module: LightningModule, variants: int) -> None:
    """Warn if a run has more distinct activations than ``torch.compile`` keeps graphs of one function."""
    if is_compiled(pl_module) and variants > (limit := int(torch._dynamo.config.recompile_limit)):
        rank_zero_warn(
            f"This run goes through {variants} versions of a compiled model, and after {limit} graphs of "
            "one function torch.compile runs it eagerly, without a word. Raise torch._dynamo.config.recompile_limit, "
            "or swap less often."
        )
