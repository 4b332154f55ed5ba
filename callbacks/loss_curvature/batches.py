"""Which batches a `LossCurvatureMonitor` probes the loss with."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

from lightning.pytorch import Trainer

from lit_gelu.curvature.probe.examples import (
    check_part,
    clone_batch,
    part_of,
    part_size,
)
from lit_gelu.curvature.probe.state import ModuleState, seed_random_state
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
        """Forget the batches of a run before."""
        self._fixed: ProbePart | None = None
        self._given: list[ProbePart] | None = None

    def keep(self, batch: Any) -> ProbePart | None:
        """Return what is needed of a batch as its step ends, in tensors of its own; ``None`` if another is probed."""
        if self.source == "fresh" or (self.source == "fixed" and self._fixed is None):
            return self._part(batch)
        return None

    def take(self, trainer: Trainer, kept: ProbePart | None) -> list[ProbePart]:
        """Return the batches for one event, on the device, given what `keep` returned."""
        if self.source == "fixed" and self._fixed is None:
            self._fixed = kept
        part = self._fixed or kept
        if part is None and self._given is None:
            self._given = self._as_training_gets_them(trainer)
        return [part] if part is not None else self._given or []

    def few(self, examples: int) -> str | None:
        """Return what to say of a default probe that is smaller than it should be; ``None`` if it is not."""
        if not self.is_default or examples >= LEAST_EXAMPLES:
            return None
        return (
            f"the whole batch is probed, and has fewer than {LEAST_EXAMPLES} examples: figures of so few differ much "
            "from batch to batch. Give probe=[batch, ...] with more of them, or fraction=None if this is what you want "
            "(as where each example holds many targets)."
        )

    def _part(self, batch: Any) -> ProbePart:
        """Return the part to be probed, with tensors of its own: it does not hold the whole in memory."""
        least = LEAST_EXAMPLES if self.is_default else 2
        part = clone_batch(part_of(batch, self.fraction, self.samples, least))
        return ProbePart(part, part_size(batch, self.fraction, self.samples, least) or 1)

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
