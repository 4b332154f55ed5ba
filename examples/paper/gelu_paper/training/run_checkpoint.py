"""The checkpoint of a run's last epoch: where it cannot be written, the run is recorded nevertheless."""

from collections.abc import Callable
from pathlib import Path

from lit_gelu.files import write_atomically
from gelu_paper.jobs import Progress
from gelu_paper.protocol.cells import Cell


def keep_checkpoint(
    folder: str | None, cell: Cell, write: Callable[[Path], object], report: Callable[[Progress], None]
) -> None:
    """Have a run's checkpoint written to a path in a folder, if there is one; report it if that cannot be done."""
    if folder is None:
        return
    try:
        with write_atomically(Path(folder) / f"{cell.key}.ckpt") as temporary:
            write(temporary)
    except OSError as error:  # a full disk, mostly: the training took longer than the checkpoint is worth
        warning = f"the run is recorded, its checkpoint is not kept: {error}"
        report(Progress(float(cell.config["trainer"]["max_epochs"]), warning=warning, unkept=cell.key))
