"""`RecordStore`: a folder of results that one process writes records to, so that a kill loses none."""

import os
import warnings
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from lit_gelu.files import UnwritablePathError, synchronise
from lit_gelu.folder_lock import lock_folder
from gelu_paper.errors import RecordsError, ResultsInUseError
from gelu_paper.records.run_record import RECORDS_FILE, RunRecord, parse_records, split_cut_line

if TYPE_CHECKING:
    from filelock import FileLock


class RecordStore:
    """The records of a folder, read and locked on entering a ``with`` block, to which finished runs are added."""

    # A last line that a kill cut off is taken away on entering. The lock goes with its process, however that ends.

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.path = self.folder / RECORDS_FILE
        self.records: dict[str, RunRecord] = {}
        self._lock: FileLock | None = None

    def __enter__(self) -> Self:
        """Lock the folder and read its records."""
        lock = lock_folder(
            self.folder,
            ResultsInUseError(
                f"Another run is writing to {str(self.folder)!r}. Wait for it, or give another folder (--results)."
            ),
        )
        try:
            self._read()
        except BaseException:
            lock.release()
            raise
        self._lock = lock
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the folder free."""
        if self._lock is not None:
            self._lock.release()

    def append(self, record: RunRecord) -> None:
        """Add a finished run; it is on the disk when this returns, or the file is as it was."""
        if record.key in self.records:
            raise RecordsError(f"There is a record of {record.key!r} already; a run is recorded once.")
        is_new = not self.path.exists()
        line = memoryview(f"{record.to_json()}\n".encode())
        with self.path.open("ab", buffering=0) as file:
            end = file.tell()
            try:
                while line:
                    line = line[file.write(line) :]
                os.fsync(file.fileno())
            except OSError as error:  # what was written of the line must not stay before the next one
                os.truncate(self.path, end)
                raise UnwritablePathError(
                    f"Cannot write the record of {record.key!r} to {str(self.path)!r}: {error.strerror}. Make room on "
                    "the disk and give the same command again: the runs that are recorded stay."
                ) from error
        if is_new:
            synchronise(self.folder)
        self.records[record.key] = record

    def _read(self) -> None:
        content = self.path.read_bytes() if self.path.exists() else b""
        try:
            if content:
                self.path.open("ab").close()  # refused now, and not when the first run has been trained
        except OSError as error:
            raise UnwritablePathError(
                f"Cannot write to {str(self.path)!r}: {error.strerror}. Give a file that you may write to, or another "
                "folder (--results)."
            ) from error
        complete, cut = split_cut_line(content)
        self.records = parse_records(complete, str(self.path))
        if cut:
            warnings.warn(
                f"{str(self.path)!r}: the last line is cut off and taken away; that run is made again.", stacklevel=3
            )
            os.truncate(self.path, len(complete))
        elif complete and not complete.endswith(b"\n"):
            with self.path.open("ab") as file:
                file.write(b"\n")
