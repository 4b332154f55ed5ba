"""Which batches a `LossCurvatureMonitor` probes the loss with."""

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch.utils import _pytree as pytree

from lit_gelu.callbacks.errors import CallbackArgumentError
from lit_gelu.callbacks.trainer_facts import on_device
from lit_gelu.curvature.loss.probe_batch import check_part, copy_containers, count_examples, part_of, take_examples


class ProbeBatches:
    """The batch at hand, the first one of the run, or given ones; whole, or a part.

    Args:
        source: "fresh", "fixed" or a sequence of batches.
        fraction: Which share of each batch; ``None`` for all.
        samples: How many examples of each batch instead.

    Attributes:
        limit: The most examples that fit in memory, once that was found out.

    Raises:
        CallbackArgumentError: If ``source`` is another word, or no batch.
        LossCurvatureError: If ``fraction`` or ``samples`` is out of range.
    """

    def __init__(self, source: str | Sequence[Any], fraction: float | None, samples: int | None) -> None:
        check_part(fraction, samples)
        if isinstance(source, str):
            accepted = source in {"fresh", "fixed"}
        else:
            accepted = isinstance(source, (list, tuple)) and len(source) > 0
        if not accepted:
            raise CallbackArgumentError(
                f"probe={source!r} is not accepted. Give 'fresh' (the batch at hand), 'fixed' (the first one of the "
                "run), or a list of batches as the training loader gives them."
            )
        self.source = source
        self.fraction, self.samples = fraction, samples
        self.reset()

    def reset(self) -> None:
        """Forget the batches and the limit of a run before."""
        self.limit: int | None = None
        self._fixed: list[Any] | None = None
        self._restored: list[Any] | None = None  # of all ranks

    def take(self, trainer: Trainer, batch: Any) -> list[Any]:
        """Return the batches for one event.

        Args:
            trainer: The Trainer.
            batch: The one at hand, on its device.

        Returns:
            Batches on the device.
        """
        if self._restored is not None:
            self._fixed, self._restored = self._restored[trainer.global_rank % len(self._restored)], None
        if self.source == "fresh":
            batches = [part_of(batch, self.fraction, self.samples)]
        elif self.source == "fixed":
            if self._fixed is None:
                part = part_of(copy_containers(batch), self.fraction, self.samples)
                self._fixed = [_cloned(part)]
            batches = [trainer.strategy.batch_to_device(part) for part in self._fixed]
        else:
            parts = [part_of(part, self.fraction, self.samples) for part in self.source]
            batches = [trainer.strategy.batch_to_device(trainer.precision_plugin.convert_input(part)) for part in parts]
        return batches if self.limit is None else [take_examples(part, self.limit) for part in batches]

    def halve(self, batches: Sequence[Any], error: BaseException) -> None:
        """Use half as many examples from now on, and say so.

        Args:
            batches: What did not fit in memory.
            error: The error that said so.

        Raises:
            BaseException: The error, if there is nothing to halve.
        """
        largest = max(count_examples(batch) or 1 for batch in batches)
        if largest == 1:
            raise error
        self.limit = (largest + 1) // 2
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        rank_zero_warn(
            f"LossCurvatureMonitor ran out of memory with {largest} examples, and goes on with {self.limit}. Figures "
            f"before and after are of different probes; set samples={self.limit} to have the same from the start."
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the limit, and the fixed batches of all ranks, on the host; called on all of them."""
        fixed = [None if self._fixed is None else on_device(self._fixed, torch.device("cpu"))]
        if self.source == "fixed" and torch.distributed.is_available() and torch.distributed.is_initialized():
            (own,) = fixed
            fixed = [None] * torch.distributed.get_world_size()
            torch.distributed.all_gather_object(fixed, own)
        return {"limit": self.limit, "fixed": fixed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the same batches.

        Args:
            state_dict: What `state_dict` returned.
        """
        self.limit = state_dict["limit"]
        self._restored = None if None in state_dict["fixed"] else state_dict["fixed"]


def _cloned(batch: Any) -> Any:
    """Return a batch with tensors of its own, so that a part does not hold the whole in memory."""
    return pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, batch)
