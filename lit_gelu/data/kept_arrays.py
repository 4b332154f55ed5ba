"""Results that take long, kept in files: computed once, then read from a file named after what they were made of."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from lightning.pytorch.utilities import rank_zero_info

from lit_gelu.data.errors import CorruptDataError
from lit_gelu.data.npz import Arrays, load_arrays
from lit_gelu.files import UnwritablePathError, is_file, write_atomically


def default_folder() -> Path:
    """Return the user's folder for what can be computed again: ``XDG_CACHE_HOME``, by default ``~/.cache``.

    Not the folder of the data, which is often shared and read-only.

    Returns:
        Its sub-folder ``lit_gelu``.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "lit_gelu"


def kept_arrays(
    name: str, folder: Path | None, is_whole: Callable[[Arrays], bool], compute: Callable[[], Arrays]
) -> Arrays:
    """Return the arrays of a file, or compute them and write the file.

    Nothing in the file is unpickled. A damaged file is computed anew and replaced, and a message says so.

    Args:
        name: The file's name without ``.npz``; it has to change with whatever the arrays depend on.
        folder: Where the file is, or will be. ``None`` means `default_folder`; where that cannot be written to, the
            arrays are computed in each run, and a message says so.
        is_whole: Tells whether arrays that were read are as `compute` makes them.
        compute: Computes the arrays.

    Returns:
        The arrays by name.

    Raises:
        UnwritablePathError: If ``folder`` is given and cannot be written to.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> def squares():
        ...     print("computed")
        ...     return {"squares": np.arange(3) ** 2}
        >>> for _ in range(2):
        ...     print(kept_arrays("squares-of-3", folder, lambda arrays: "squares" in arrays, squares)["squares"])
        computed
        [0 1 4]
        [0 1 4]
    """
    path = (default_folder() if folder is None else folder) / f"{name}.npz"
    if is_file(path):
        found = _read(path)
        if found is not None and is_whole(found):
            return found
        rank_zero_info(f"{str(path)!r} is damaged; what it held is computed anew.")
    arrays = compute()
    try:
        with write_atomically(path) as temporary:
            np.savez(temporary, **arrays)  # type: ignore[arg-type] # numpy's stub takes a name for its own option
    except UnwritablePathError as error:
        if folder is not None:
            raise
        rank_zero_info(f"{path.name} is not kept for the next run: {error} (cache=)")
    return arrays


def _read(path: Path) -> Arrays | None:
    """Return the arrays of a file, or ``None`` if it is damaged."""
    try:
        return load_arrays(path)
    except CorruptDataError:
        return None
