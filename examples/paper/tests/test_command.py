"""The command: what it prints and writes, and its exit codes."""

import json
import pathlib
import subprocess
import sys

import pytest
from paths import DOCS

from gelu_paper import __main__ as command
from gelu_paper.__main__ import main

RECORDS = str(DOCS / "data" / "paper_runs.jsonl.xz")


@pytest.fixture(autouse=True)
def in_an_empty_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def test_it_lists_experiments(capsys):
    assert main(["list", "--preset", "full", "--only", "mnist", "cifar10"]) == 0
    text = capsys.readouterr().out
    assert "mnist: MNIST classification (figure 2; under noise figure 3)" in text
    assert "gelu, relu, elu, silu; keep 1.0, 0.5; learning rate 0.001, 0.0001, 1e-05; 5 seeds; 50 epochs; 120" in text
    assert "learning rate from cifar10_search; 3 seeds; 200 epochs; 9 runs" in text


def test_it_runs_and_goes_on_and_shows_the_results(digits, monkeypatch, capsys):
    assert main(["run", "--arms", "gelu", "--only", "mnist", "--workers", "1"]) == 0
    assert "0 runs were finished before, 1 trained" in capsys.readouterr().out
    assert main(["run", "--dry-run"]) == 0
    assert capsys.readouterr().out == "mnist: 1 to be trained\nphi_quality: 0 to be trained\n"
    assert main(["run", "--workers", "1"]) == 0
    assert "1 runs were finished before, 1 trained, 1 identical to others, 0 failed" in capsys.readouterr().out
    assert main(["table", "--only", "mnist"]) == 0
    table = capsys.readouterr().out
    assert "**quick: not the paper's protocol**" in table
    assert table.count("| keep 1 | ") == 2
    assert main(["figures"]) == 0
    assert "runs/paper/quick/figures/figure_2.png" in capsys.readouterr().out


@pytest.mark.ray
def test_it_runs_by_ray(digits):
    assert main(["run", "--engine", "ray", "--workers", "2", "--only", "mnist"]) == 0
    with pathlib.Path("runs/paper/quick/runs.jsonl").open() as file:
        assert {json.loads(line)["arm"] for line in file} == {"gelu", "relu"}


def test_it_writes_tables_as_csv(capsys):
    assert main(["table", "--results", RECORDS, "--only", "tweets", "--format", "csv"]) == 0
    header, *rows = capsys.readouterr().out.strip().splitlines()
    assert len(rows) == 3
    assert {"arm", "median", "published"} <= set(header.split(","))


def test_it_writes_the_blocks_of_a_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A\n<!-- gelu_paper: tweets results -->\n<!-- end -->\n")
    assert main(["table", "--results", RECORDS, "--page", str(page)]) == 0
    assert "| 12.75 |" in page.read_text()


def test_figures_that_were_asked_for_and_have_no_runs_are_missing(capsys):
    assert main(["figures", "--results", RECORDS, "--numbers", "7", "--output", "here"]) == 1
    assert "figure 7 (cifar100) is not drawn" in capsys.readouterr().err
    assert main(["figures", "--numbers", "1", "--output", "here", "--format", "svg"]) == 0


@pytest.mark.parametrize(
    "line",
    [
        "run --only mnits",
        "run --arms gleu",
        "run --workers 0",
        "run --preset full --only cifar100 --epochs 3",
        "table --results nowhere",
        "table --only nothing",
        "figures --numbers 9",
    ],
)
def test_a_mistake_is_one_line(line, capsys, monkeypatch):
    assert main(line.split()) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_missing_data_are_a_failure_unless_they_may_be_skipped(capsys, tmp_path):
    line = ["run", "--only", "tweets", "--data-root", str(tmp_path), "--results", "here"]
    assert main(line) == 1
    assert "tweets: " in capsys.readouterr().err
    assert main([*line, "--skip-missing"]) == 0


def test_an_interruption_has_its_exit_code(monkeypatch):
    def interrupt(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "list_experiments", interrupt)
    assert main(["list"]) == 130


def test_help_loads_neither_torch_nor_pandas():
    script = "import sys, gelu_paper.__main__ as m; m.main(['list']); print({'torch', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
