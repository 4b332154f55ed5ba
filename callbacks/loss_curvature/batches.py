"""Which batches a `LossCurvatureMonitor` probes the loss with."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import torch
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn

from lit_gelu.curvature.probe.examples import (
    check_part,
    clone_batch,
    copy_containers,
    from_plain,
    part_of,
    part_size,
    take_examples,
    to_plain,
)
from lit_gelu.curvature.probe.state import ModuleState, seed_random_state
from lit_gelu.curvature.ranks import gathered
from lit_gelu.errors import ArgumentError
from lit_gelu.sandbox import isolated_generators

DEFAULT_FRACTION = 1 / 8
LEAST_EXAMPLES = 32
"""Of the default part: with 4 examples the top eigenvalue of one net differed from probe to probe by 135 % (standard
deviation), with 16 by 50 %, with 32 by 36 %, with 64 by 25 %."""

Fraction = float | Literal["auto"] | None


@dataclass(frozen=True)
class ProbePart:
    """A batch, or a part of one, that the loss is probed with."""

    batch: Any  # what ``training_step`` takes
    examples: int  # how many examples it has, told from the whole batch; 1 where that cannot be told


class ProbeBatches:
    """The batch at hand ("fresh"), the first one of the run ("fixed"), or given ones; whole, or a part."""

    def __init__(self, source: str | Sequence[Any], fraction: Fraction, samples: int | None, seed: int = 0) -> None:
        self.is_default = fraction == "auto" and samples is None
        if isinstance(fraction, str):
            if fraction != "auto":
                raise ArgumentError(
                    f"fraction={fraction!r} is not accepted. Give a share of the batch, 'auto', or None for all of it."
                )
            fraction = None if samples is not None else DEFAULT_FRACTION
        check_part(fraction, samples)
        if isinstance(source, str):
            accepted = source in {"fresh", "fixed"}
        else:
            accepted = isinstance(source, (list, tuple)) and len(source) > 0
        if not accepted:
            raise ArgumentError(
                f"probe={source!r} is not accepted. Give 'fresh' (the batch at hand), 'fixed' (the first one of the "
                "run), or a list of batches as the training loader gives them."
            )
        self.source = source
        self.fraction, self.samples, self.seed = fraction, samples, seed
        self.reset()

    def reset(self) -> None:
        """Forget the batches and the limit of a run before."""
        self.limit: int | None = None  # the most examples that fit in memory, once that was found out
        self._fixed: ProbePart | None = None
        self._given: list[ProbePart] | None = None
        self._restored: list[Any] | None = None  # of all ranks, as they are saved

    def keep(self, batch: Any) -> ProbePart | None:
        """Return what is needed of a batch as its step ends, in tensors of its own; ``None`` if another is probed."""
        if self._restored is not None:
            return ProbePart(copy_containers(batch), 0)  # only its types are asked for
        if self.source == "fresh" or (self.source == "fixed" and self._fixed is None):
            return self._part(batch)
        return None

    def take(self, trainer: Trainer, kept: ProbePart | None) -> list[ProbePart]:
        """Return the batches for one event, on the device, given what `keep` returned."""
        if self._restored is not None:
            self._fixed = self._restore(trainer, self._restored, kept)
            self._restored = None
        elif self.source == "fixed" and self._fixed is None:
            self._fixed = kept
        part = self._fixed or kept
        if part is None and self._given is None:
            self._given = self._as_training_gets_them(trainer)
        parts = [part] if part is not None else self._given or []
        limit = self.limit
        if limit is None:
            return parts
        return [ProbePart(take_examples(part.batch, limit), min(part.examples, limit)) for part in parts]

    def halve(self, parts: Sequence[ProbePart], error: BaseException) -> None:
        """Use half as many examples from now on, and say so; raise the error if nothing can be halved."""
        largest = max(part.examples for part in parts)
        limit = (largest + 1) // 2
        if largest == 1:
            raise error
        try:
            for part in parts:
                take_examples(part.batch, limit)
        except ArgumentError:
            raise error from None
        self.limit = limit
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        rank_zero_warn(
            f"LossCurvatureMonitor ran out of memory with {largest} examples, and goes on with {self.limit}. Figures "
            f"before and after are of different probes; set samples={self.limit} to have the same from the start."
        )

    def few(self, examples: int) -> str | None:
        """Return what to say of a default probe that is smaller than it should be; ``None`` if it is not."""
        if not self.is_default or self.limit is not None or examples >= LEAST_EXAMPLES:
            return None
        return (
            f"the whole batch is probed, and has fewer than {LEAST_EXAMPLES} examples: figures of so few differ much "
            "from batch to batch. Give probe=[batch, ...] with more of them, or fraction=None if this is what you want "
            "(as where each example holds many targets)."
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the limit, and the fixed batches of all ranks in plain containers on the host; called on all ranks."""
        if self._restored is not None:
            return {"limit": self.limit, "fixed": self._restored}
        fixed = self._saved()
        return {"limit": self.limit, "fixed": gathered(fixed) if self.source == "fixed" else [fixed]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the same batches."""
        self.limit = state_dict["limit"]
        saved = self.source == "fixed" and None not in state_dict["fixed"]
        self._restored = state_dict["fixed"] if saved else None

    def _part(self, batch: Any) -> ProbePart:
        """Return the part to be probed, with tensors of its own: it does not hold the whole in memory."""
        least = LEAST_EXAMPLES if self.is_default else 2
        part = clone_batch(part_of(batch, self.fraction, self.samples, least))
        return ProbePart(part, part_size(batch, self.fraction, self.samples, least) or 1)

    def _restore(self, trainer: Trainer, restored: list[Any], kept: ProbePart | None) -> ProbePart:
        """Return this rank's fixed batch of a checkpoint, in the types of the one at hand."""
        saved = restored[trainer.global_rank % len(restored)]
        batch = from_plain(saved["batch"], None if kept is None else kept.batch)
        # It went through the module's hooks before it was saved: it is moved, and nothing else.
        return ProbePart(move_data_to_device(batch, trainer.strategy.root_device), saved["examples"])

    def _as_training_gets_them(self, trainer: Trainer) -> list[ProbePart]:
        """Return parts of the given batches after all hooks that a training batch goes through; those run once."""
        module = trainer.lightning_module
        state = ModuleState(module)
        parts = []
        with ExitStack() as stack:
            stack.callback(state.restore)
            stack.enter_context(isolated_generators(state.devices))
            seed_random_state(self.seed + trainer.global_rank, state.devices)
            for given in self.source:
                batch = trainer.precision_plugin.convert_input(clone_batch(given))
                batch = trainer.strategy.batch_to_device(module._on_before_batch_transfer(batch))
                parts.append(self._part(batch))
        return parts

    def _saved(self) -> dict[str, Any] | None:
        """Return the fixed batch as a checkpoint can hold it; ``None`` if there is none, or none that it can."""
        if self._fixed is None:
            return None
        try:
            return {"batch": to_plain(self._fixed.batch), "examples": self._fixed.examples}
        except TypeError as error:
            rank_zero_warn(
                f"LossCurvatureMonitor(probe='fixed'): the batch holds an object of type {error}, which no checkpoint "
                "can hold. A resumed run goes on with another batch; give probe=[batch] for the same one in each run."
            )
            return None
