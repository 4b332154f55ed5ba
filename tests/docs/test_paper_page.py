"""docs/paper.md is what its generator writes of the runs that are kept, and what it says of them is so."""

import importlib
import json
import lzma
import re
from pathlib import Path

import pytest

from lit_gelu.paper.medians import median_curve
from lit_gelu.paper.presets import preset
from lit_gelu.paper.run_record import parse_records
from lit_gelu.paper.selection import choices

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / "paper.md").read_text()
RUNS = list(parse_records(lzma.decompress((DOCS / "data" / "paper_runs.jsonl.xz").read_bytes()), "paper_runs").values())


@pytest.fixture
def generator(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("make_paper")


def test_the_page_is_not_stale(generator):
    assert generator.page() == PAGE, "Run `make docs`."


def test_every_run_is_of_the_papers_protocol_and_this_package():
    assert {run.preset for run in RUNS} == {"full"}
    assert all(run.status == "finished" for run in RUNS)


def losses_at_the_end(keep):
    """Return each arm's median training loss of the last measurement."""
    found = {}
    for arm in ("gelu", "elu", "relu"):
        (choice,) = [c for c in choices(preset("full")["mnist"], arm, RUNS) if c.chosen.setting["keep"] == keep]
        assert len(choice.chosen.runs) == 5
        found[arm] = median_curve(choice.chosen.runs, "train_loss").median[-1]
    return found


def test_with_dropout_the_order_is_the_papers():
    found = losses_at_the_end(0.5)
    assert found["gelu"] < found["elu"] < found["relu"]


def test_the_figures_are_there():
    shown = re.findall(r"\]\((images/paper/[^)]+)\)", PAGE)
    assert shown
    assert all((DOCS / name).is_file() for name in shown)


def test_runs_of_a_results_folder_are_kept_whole(generator, monkeypatch, tmp_path):
    runs = importlib.import_module("_paper_runs")
    monkeypatch.setattr(runs, "RECORDS", tmp_path / "kept.xz")
    lines = [run.to_json() for run in RUNS[:2]]
    (tmp_path / "runs.jsonl").write_text("".join(f"{line}\n" for line in lines))
    runs.keep(tmp_path)
    assert [json.loads(run.to_json()) for run in runs.records()] == [json.loads(line) for line in lines]


def test_damaged_runs_are_not_kept(generator, monkeypatch, tmp_path):
    runs = importlib.import_module("_paper_runs")
    monkeypatch.setattr(runs, "RECORDS", tmp_path / "kept.xz")
    (tmp_path / "runs.jsonl").write_text('{"key": 1}\n')
    with pytest.raises(ValueError, match="line 1"):
        runs.keep(tmp_path)
    assert not (tmp_path / "kept.xz").exists()
