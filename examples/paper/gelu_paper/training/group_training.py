"""Training a group: the records that its cells would have alone, from one ordinary Trainer."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from lightning.pytorch import Trainer

from lit_gelu.files import write_atomically
from lit_gelu.garbage import collection_paused
from gelu_paper.jobs import CellGroup, Progress, RunOptions
from gelu_paper.records.run_record import RunRecord
from gelu_paper.training.cell_training import (
    DataCache,
    LoadedData,
    back_on,
    import_class,
    record_of,
    robustness_of,
    versions,
)
from gelu_paper.training.curve_recorder import evaluation_steps
from gelu_paper.training.group_recorder import GroupRecorder, unsaved
from gelu_paper.training.run_checkpoint import keep_checkpoint
from gelu_paper.training.unfinished_groups import checkpoint_file, description, description_file
from lit_gelu.replicas import ReplicaDataModule, ReplicaGroup, build_members

if TYPE_CHECKING:
    from lit_gelu.tasks import ActivationTask


def train_group(
    group: CellGroup, data: DataCache, options: RunOptions, report: Callable[[Progress], None]
) -> list[RunRecord]:
    """Make the runs of a group; ``report`` is called with how far each is."""
    # What a kill left of the same group is gone on from, to the same bits.
    started, clock = datetime.now(UTC), time.monotonic()
    first = group.cells[0].config
    loaded = data.get(first["data"])
    with collection_paused():  # many nets are many objects
        replicas = ReplicaGroup(
            build_members(
                import_class(first["model"]["class_path"]),
                [cell.config["model"]["init_args"] for cell in group.cells],
                [cell.seed for cell in group.cells],
            )
        )
    given = ReplicaDataModule(loaded.module)  # type: ignore[arg-type] # refused there if it is another
    given.batch_ends = evaluation_steps(given.order.steps, first["measurement"]["evaluations_per_epoch"])
    unfinished, warning = _checkpoint(group, options)
    recorder = GroupRecorder(
        len(group.cells),
        loaded.sets,
        given.batch_ends,
        given.order.steps,
        checkpoint=unfinished,
        report=report,
        warning=warning,
    )
    trainer = Trainer(
        **first["trainer"],
        accelerator=options.accelerator,
        devices=1,
        callbacks=[recorder],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    is_resumed = unfinished is not None and unfinished.exists()
    trainer.fit(replicas, datamodule=given, ckpt_path=unfinished if is_resumed else None, weights_only=True)
    seconds = recorder.seconds if is_resumed else time.monotonic() - clock
    device = trainer.strategy.root_device
    return _records(group, replicas, recorder, loaded, options, started, seconds, device, report)


def _records(
    group: CellGroup,
    replicas: ReplicaGroup,
    recorder: GroupRecorder,
    loaded: LoadedData,
    options: RunOptions,
    started: datetime,
    seconds: float,
    device: torch.device,
    report: Callable[[Progress], None],
) -> list[RunRecord]:
    """Return the record of every cell."""
    size = len(group.cells)
    how = {"size": size, "seconds": round(seconds, 3), "executor": replicas.executor.kind}
    nets = cast("list[ActivationTask]", replicas.members)
    measured = [None if is_diverged else net for net, is_diverged in zip(nets, recorder.diverged, strict=True)]
    with back_on(device, replicas):
        robustness = robustness_of(group.cells, measured, loaded, replicas.executor.outputs)
    records = []
    for replica, cell in enumerate(group.cells):
        keep_checkpoint(options.checkpoints, cell, partial(_save, replicas, replica), report)
        records.append(
            record_of(
                cell,
                loaded,
                recorder.curves(replica),
                robustness[replica],
                is_diverged=recorder.diverged[replica],
                device=device,
                started=started,
                seconds=seconds / size,
                group=how,
            )
        )
    return records


def _save(replicas: ReplicaGroup, replica: int, path: Path) -> None:
    """Write the checkpoint of a member."""
    written = BytesIO()  # torch's own writer of files has no OSError for a full disk
    torch.save(replicas.member_checkpoint(replica), written)
    path.write_bytes(written.getbuffer())


def _checkpoint(group: CellGroup, options: RunOptions) -> tuple[Path | None, str]:
    """Return where the group's checkpoint is kept, and why it cannot be; one of other versions is not gone on from."""
    if options.groups is None:
        return None, ""
    folder = Path(options.groups)
    checkpoint, beside = checkpoint_file(folder, group), description_file(folder, group)
    text = json.dumps(description(group, versions()))
    try:
        if not beside.exists() or beside.read_text(encoding="utf-8") != text:
            checkpoint.unlink(missing_ok=True)
            with write_atomically(beside) as temporary:
                temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        return None, unsaved(error)
    return checkpoint, ""
