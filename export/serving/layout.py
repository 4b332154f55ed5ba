"""Folders and files of a model repository: made aside, and put in their place."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lit_gelu.errors import LitGeluError
from lit_gelu.export.runtime.model_file import ModelFile
from lit_gelu.files import UnwritablePathError
from lit_gelu.leftovers import forget, make_temporary_folder

MODEL_FILE = "model.onnx"


class TritonRepositoryError(LitGeluError, FileExistsError):
    """The repository already holds what would be written, or something else in its place."""


def require_free(folder: Path, version: int, files: Mapping[str, str]) -> None:
    """Refuse to replace anything that is not the same."""
    if (folder / str(version)).exists():
        raise TritonRepositoryError(
            f"Version {version} is there already: {str(folder / str(version))!r}. Give another version=, or "
            "overwrite=True."
        )
    for name, text in files.items():
        old = kept_text(folder / name) if (folder / name).is_file() else text
        if old != text:
            raise TritonRepositoryError(
                f"{str(folder / name)!r} holds for all versions, and this file would change it ({_change(old, text)}). "
                "keep_config=True leaves it as it is, overwrite=True replaces it, name= makes another model."
            )


def require_no_link(folder: Path, version: int) -> None:
    """Refuse to write through a link, which may lead out of the repository."""
    for place in (folder, folder / str(version)):
        if place.is_symlink():
            raise TritonRepositoryError(
                f"{str(place)!r} is a link to {str(place.readlink())!r}: what is written there would change another "
                "folder. Remove the link, or give another name= or repository."
            )


def kept_text(file: Path) -> str:
    """Return the text of a file that stands in a repository."""
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TritonRepositoryError(
            f"{str(file)!r} is no text in UTF-8 ({error.reason} at byte {error.start}). overwrite=True replaces it, "
            "name= makes another model."
        ) from error


def write_version(folder: Path, version: int, model: ModelFile, files: Mapping[str, str]) -> None:
    """Write a version, and what stands beside all versions."""
    try:
        with _stage(folder) as stage:
            _copy(model, stage / str(version))
            for name, text in files.items():
                (stage / name).write_text(text, encoding="utf-8", newline="\n")
            _publish(stage, folder, str(version))
    except OSError as error:
        raise UnwritablePathError(
            f"Cannot write {str(folder)!r}: {error.strerror or error}. Give a repository that you may write to, on a "
            "disk with room. What was there before is unchanged."
        ) from error


def _change(old: str, new: str) -> str:
    """Return the first line that differs."""
    pairs = zip([*old.splitlines(), "end"], [*new.splitlines(), "end"], strict=False)
    was, now = next((a.strip(), b.strip()) for a, b in pairs if a != b)
    return f"{was!r} to {now!r}"


@contextmanager
def _stage(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder on the same disk; it goes with what is left in it, after a kill with the next write."""
    place = folder
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        place = _aside(folder.parent)
    stage = make_temporary_folder(place / folder.name)
    try:
        yield stage
    finally:
        forget(stage)


def _aside(repository: Path) -> Path:
    """Return the folder in which a new model is made."""
    # A server that polls the repository takes every folder in it for a model, also a half made one. Above the
    # repository it sees nothing, and a rename is one step if both are of one disk. Where they are not (a volume that is
    # mounted there), or nothing may be written above, the folder is made inside, with a dot before its name. Inside a
    # model's own folder, where new versions are made, Triton passes over what is no number.
    above = repository.resolve().parent
    same = above.stat().st_dev == repository.stat().st_dev
    return above if same and os.access(above, os.W_OK) else repository


def _copy(model: ModelFile, folder: Path) -> None:
    """Copy a model and its external data, each at its place beside the model."""
    for location in (MODEL_FILE, *model.external):
        target = folder / location
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(model.path if location == MODEL_FILE else model.path.parent / location, target)


def _publish(stage: Path, folder: Path, version: str) -> None:
    """Put what was made in its place: a new model in one rename, a version of one that is there with its files."""
    if not folder.exists():
        stage.rename(folder)
        return
    # A name that no later write takes for its own: a process that is killed between the renames leaves the old version.
    place, old = folder / version, stage.with_name(f"{stage.name}-replaced")
    if place.exists():
        place.rename(old)
    try:
        (stage / version).rename(place)
    except OSError:
        if old.exists():
            old.rename(place)
        raise
    shutil.rmtree(old, ignore_errors=True)
    for file in [entry for entry in stage.iterdir() if entry.is_file()]:
        file.replace(folder / file.name)
