"""`ReplicaCheckpoint`: the members of a group as ordinary checkpoints."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from lit_gelu.callbacks.errors import CallbackArgumentError, UnsupportedRunError
from lit_gelu.files import require_writable


class ReplicaCheckpoint(Callback):
    """Writes members of a `lit_gelu.replicas.ReplicaGroup` as checkpoints of their own, beside the group's.

    A `ModelCheckpoint` saves the whole group, from which it is resumed. The files of this callback are those of single
    models: ``load_from_checkpoint``, ``lit-gelu export`` and ``lit-gelu test`` take them, and with `ExactResume`
    ``Trainer.fit(ckpt_path=...)`` goes on alone. Each is called by its member's key (``group.keys``), and takes the
    place of its last one in one rename::

        Trainer(callbacks=[ReplicaCheckpoint("members", every_n_epochs=5), ModelCheckpoint(save_last=True)])

    Args:
        folder: Where the files go.
        every_n_epochs: After how many epochs; they are written when training ends, too.
        members: The keys or numbers of those to be written; ``None`` means all.

    Raises:
        CallbackArgumentError: If an argument is not accepted.
        UnsupportedRunError: If the Trainer trains no group.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        every_n_epochs: int = 1,
        members: Sequence[int | str] | None = None,
    ) -> None:
        if isinstance(every_n_epochs, bool) or not isinstance(every_n_epochs, int) or every_n_epochs < 1:
            raise CallbackArgumentError(
                f"every_n_epochs={every_n_epochs!r} is not accepted. Give an integer of at least 1."
            )
        self.folder, self.every_n_epochs, self.members = Path(folder), every_n_epochs, members
        self._numbers: list[int] = []
        self._written_at = -1

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the members, and out whether their files can be written, before the first step is spent."""
        self._numbers, self._written_at = self._found(pl_module), -1
        for number in self._numbers:
            require_writable(self._path(pl_module, number))

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write, if it is time."""
        if (trainer.current_epoch + 1) % self.every_n_epochs == 0:
            self._write(trainer, pl_module)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write what the run ends with."""
        self._write(trainer, pl_module)

    def _write(self, trainer: Trainer, group: Any) -> None:
        if trainer.is_global_zero and self._written_at != trainer.global_step:
            self._written_at = trainer.global_step
            for number in self._numbers:
                group.save_member(number, self._path(group, number))

    def _path(self, group: Any, number: int) -> Path:
        return self.folder / f"{group.keys[number]}.ckpt"

    def _found(self, group: Any) -> list[int]:
        """Return the numbers of the members to be written."""
        keys: list[str] | None = getattr(group, "keys", None)
        if keys is None or not hasattr(group, "save_member"):  # not by class: replicas import callbacks
            raise UnsupportedRunError(
                f"ReplicaCheckpoint writes the members of a ReplicaGroup, and {type(group).__name__} is none. Use "
                "ModelCheckpoint."
            )
        wanted = range(len(keys)) if self.members is None else self.members
        numbers: list[Any] = [keys.index(one) if one in keys else one for one in wanted]
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(keys):
                raise CallbackArgumentError(
                    f"members: there is no replica {number!r}. Give numbers below {len(keys)}, or keys: "
                    f"{', '.join(keys)}."
                )
        return numbers
