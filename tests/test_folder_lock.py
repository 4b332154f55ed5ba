"""A folder that is taken raises the caller's error, and one that cannot be written to is said."""

import pytest

from lit_gelu.files import UnwritablePathError
from lit_gelu.folder_lock import lock_folder


class TakenError(Exception):
    pass


def test_a_taken_folder_raises_what_the_caller_gave(tmp_path):
    first = lock_folder(tmp_path / "new" / "folder", TakenError())
    with pytest.raises(TakenError):
        lock_folder(tmp_path / "new" / "folder", TakenError())
    first.release()
    lock_folder(tmp_path / "new" / "folder", TakenError()).release()


@pytest.mark.parametrize("name", ["file/folder", "with\0nul"])
def test_where_nothing_can_be_written(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(UnwritablePathError, match=r"Cannot write to .*Give a folder that you may write to"):
        lock_folder(tmp_path / name, TakenError())
