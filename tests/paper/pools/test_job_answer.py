"""What becomes of an error within a job."""

import pytest
from paper_runs import DIGITS

from lit_gelu.extras import MissingExtraError
from lit_gelu.paper.jobs import RunOptions
from lit_gelu.paper.pools.job_answer import answer
from lit_gelu.paper.protocol.cells import expand
from lit_gelu.paper.training.cell_training import DataCache


@pytest.mark.parametrize(
    ("error", "kind"), [(ImportError("no kernels"), "error"), (MissingExtraError("needs soundfile"), "missing")]
)
def test_only_a_library_of_an_extra_may_be_missing(error, kind, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr("lit_gelu.paper.pools.job_answer.train", fail)
    said = answer(expand(DIGITS, "quick")[0], DataCache(None), RunOptions(), lambda _: None)
    assert said.kind == kind
    assert ("Traceback" in said.trace) == (kind == "error")
