"""Validation and test of a group: the members one by one, each with its own steps and hooks."""

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor
from torch.utils.data import DataLoader

from lit_gelu.replicas.errors import NotReplicableError
from lit_gelu.replicas.forward.stacked_forward import KNOWN
from lit_gelu.replicas.membership.member_trainer import GroupRun, MemberTrainer, values_of
from lit_gelu.replicas.randomness.streams import Streams
from lit_gelu.sandbox import evaluation_mode


class MemberEvaluation:
    """One pass over the validation or test set.

    On a CPU this takes no longer than all members at once would, and the values are those of the runs alone.

    Args:
        members: The modules.
        streams: Their random numbers.
        run: What they see of the Trainer.
        stage: ``"validation"`` or ``"test"``.
        loaders: Those of the pass.
    """

    def __init__(
        self,
        members: Sequence[LightningModule],
        streams: Streams,
        run: GroupRun,
        stage: str,
        loaders: Sequence[Any],
    ) -> None:
        self.members, self.streams, self.stage = members, streams, stage
        self.trainers = [MemberTrainer(run, member, replica) for replica, member in enumerate(members)]
        # A batch is of one of several loaders, or of all of them at once.
        self.loaders = len(loaders) if run.trainer._evaluation_loop._is_sequential else min(1, len(loaders))
        step = getattr(members[0], f"{stage}_step")  # which may leave the batch's number out, as Lightning tells
        self.takes_index = is_param_in_hook_signature(step, "batch_idx", min_args=2)
        self.results = [_ResultCollection(training=False) for _ in members]
        self.before = (streams.states(), streams.others()) if run.trainer.sanity_checking else None
        is_known = all(type(member) in KNOWN for member in members)
        self.global_generators_of = streams.of if is_known else streams.whole_of
        if self.is_overridden(f"{stage}_step") and not run.trainer.sanity_checking:
            self._draw_base_seeds(loaders)

    def is_overridden(self, hook: str) -> bool:
        """Tell whether the members have a hook of their own."""
        return is_overridden(hook, self.members[0])

    def call(self, hook: str, *given: Any, outputs: Sequence[Any] | None = None) -> list[Any]:
        """Call a hook of every member, in evaluation mode and with its own random numbers.

        Args:
            hook: Its name.
            given: What all members' hooks are given.
            outputs: What each member's is given before that.

        Returns:
            What the hooks returned; ``None`` where there are none.
        """
        if not self.is_overridden(hook):
            return [None] * len(self.members)
        returned = []
        for replica, (member, results) in enumerate(zip(self.members, self.results, strict=True)):
            with (
                self.trainers[replica].results(hook, results),
                self.global_generators_of(replica),
                evaluation_mode(member),
                torch.no_grad(),
            ):
                own = () if outputs is None else (outputs[replica],)
                returned.append(getattr(member, hook)(*own, *given))
        return returned

    def step(self, batch: Any, index: int, loader: int) -> None:
        """Go through a batch with every member."""
        several = self.loaders > 1
        for results in self.results:
            results.batch, results.batch_size, results.dataloader_idx = batch, None, loader if several else None
        given = (batch, index, loader) if several else (batch, index)
        self.call(f"on_{self.stage}_batch_start", *given)
        outputs = self.call(f"{self.stage}_step", *(given if self.takes_index else given[:1]))
        self.call(f"on_{self.stage}_batch_end", *given, outputs=outputs)

    def values(self) -> dict[str, Tensor]:
        """Return what the members logged, ``[replicas]`` each, as their runs alone would."""
        for results, trainer in zip(self.results, self.trainers, strict=True):
            results.batch, results.dataloader_idx = None, None
            trainer.over = self.loaders
        self.call(f"on_{self.stage}_epoch_end")
        found = [values_of(results, self.loaders) for results in self.results]
        for results in self.results:
            results.reset()
        for replica, values in enumerate(found):
            if values.keys() != found[0].keys():
                raise NotReplicableError(
                    f"Members 0 and {replica} log other names: {sorted(found[0])} and {sorted(values)}. A group keeps "
                    "one array for every name: log the same ones in all members."
                )
        return {name: torch.stack([values[name].cpu() for values in found]) for name in found[0]}

    def end(self) -> None:
        """End the pass; one that was a Trainer's sanity check has drawn no random numbers."""
        self.call(f"on_{self.stage}_end")
        if self.before is not None:
            self.streams.set_states(self.before[0])
            self.streams.set_others(self.before[1])

    def _draw_base_seeds(self, loaders: Sequence[Any]) -> None:
        """Draw what the iterator of each loader draws from the global generator, for worker processes if it has any."""
        for loader in loaders:
            if isinstance(loader, DataLoader) and loader.generator is None:
                for generator in self.streams.generators:
                    torch.empty((), dtype=torch.int64).random_(generator=generator)
