"""What becomes of an error within a job."""

import sys

import pytest
from file_limits import files_limited_to
from paper_runs import DIGITS

from lit_gelu.extras import MissingExtraError
from gelu_paper.jobs import CellGroup, RunOptions
from gelu_paper.pools.job_answer import answer
from gelu_paper.protocol.cells import expand
from gelu_paper.training.cell_training import DataCache


@pytest.mark.parametrize(
    ("error", "kind"), [(ImportError("no kernels"), "error"), (MissingExtraError("needs soundfile"), "missing")]
)
def test_only_a_library_of_an_extra_may_be_missing(error, kind, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr("gelu_paper.pools.job_answer.train", fail)
    said = answer(expand(DIGITS, "quick")[0], DataCache(None), RunOptions(), lambda _: None)
    assert said.kind == kind
    assert ("Traceback" in said.trace) == (kind == "error")


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*number of training batches")
@pytest.mark.skipif(sys.platform == "win32", reason="the limit on the size of files is POSIX's")
@pytest.mark.parametrize("size", [1, 2])
def test_the_end_of_a_job_has_all_runs_whose_checkpoint_is_not_there(tmp_path, size):
    """A pool may drop all reports but the last, as Ray's does."""
    cells = tuple(expand(DIGITS, "quick")[:size])
    job = CellGroup(cells) if size > 1 else cells[0]
    with files_limited_to(20_000):
        done = answer(job, DataCache(None), RunOptions(checkpoints=str(tmp_path)), lambda _: None)
    assert [record.key for record in done.records] == list(done.unkept) == [cell.key for cell in cells]
    assert all("its checkpoint is not kept: Cannot write" in why for why in done.unkept.values())
