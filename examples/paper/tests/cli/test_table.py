"""``lit-gelu paper table``."""

import csv
import io

import pytest
from paper_records import classifier_records, run_record

from lit_gelu.cli.main import main

QUICK = "quick: not the paper's protocol"


def write_results(folder, records):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "runs.jsonl").write_text("".join(f"{record.to_json()}\n" for record in records))
    return str(folder)


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Make quick and full results where the commands look for them."""
    monkeypatch.chdir(tmp_path)
    errors = {1e-3: [(0.13, 0.1262), (0.14, 0.1272)]}
    quick = classifier_records(errors, experiment="tweets", preset="quick")
    mnist = classifier_records(errors, setting={"keep": 0.5}, preset="quick")
    losses = [run_record("autoencoder", curves={"test_loss": [0.01] * 10}, preset="quick")]
    write_results(tmp_path / "runs/paper/quick", [*quick, *mnist, *losses])
    write_results(tmp_path / "runs/paper/full", classifier_records(errors, experiment="tweets"))
    return tmp_path


def test_text_on_standard_output(results, capsys):
    assert main(["paper", "table"]) == 0
    captured = capsys.readouterr()
    assert captured.out.count(QUICK) == 3
    assert "tweets: parts of speech of tweets (section 3.3)" in captured.out
    assert "12.67" in captured.out  # the mean of the two in the middle
    assert "+0.10" in captured.out
    assert captured.err == ""


def test_the_full_preset_has_a_folder_of_its_own(results, capsys):
    assert main(["paper", "table", "--preset", "full"]) == 0
    output = capsys.readouterr().out
    assert QUICK not in output
    assert "2 of 5" in output


def test_only_and_csv(results, capsys):
    assert main(["paper", "table", "--only", "tweets", "--format", "csv"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (row["experiment"], row["protocol"]) == ("tweets", QUICK)
    assert float(row["median"]) == pytest.approx(0.1267, abs=1e-15)


def test_points_of_curves(results, capsys):
    assert main(["paper", "table", "--of", "points"]) == 0
    output = capsys.readouterr().out
    (line,) = [line for line in output.splitlines() if " gelu " in line]
    assert line.split()[-2:] == ["0.0075", "+0.0025"]


def test_markdown_into_a_file(results, capsys):
    assert main(["paper", "table", "--format", "markdown", "--output", "tables/quick.md"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "wrote tables/quick.md\n")
    assert f"**{QUICK}**" in (results / "tables/quick.md").read_text()


def test_a_results_file_by_name(results, capsys):
    assert main(["paper", "table", "--results", "runs/paper/full/runs.jsonl"]) == 0
    assert "12.57" in capsys.readouterr().out


def test_a_folder_that_is_called_like_a_file(results, capsys):
    (results / "runs/paper/full").rename(results / "x.jsonl")
    assert main(["paper", "table", "--results", "x.jsonl"]) == 0
    assert "12.57" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--results", "nowhere"], "There are no runs in 'nowhere' (no runs.jsonl). Make runs with lit-gelu paper run"),
        (["--results", "long" * 75], "There are no runs in 'longlong"),
        (["--results", "nul\0nul"], "There are no runs in 'nul"),
        (["--results", "empty"], "it is empty"),
        (["--results", "damaged"], "line 1: The line is not JSON"),
        (["--only", "mnits"], "no experiment 'mnits'. Did you mean 'mnist'? Accepted: mnist, autoencoder"),
        (["--only", "timit"], "it has runs of tweets, mnist, autoencoder"),
        (["--of", "points", "--only", "tweets"], "no runs with a measurement at a published point"),
        (["--output", "file/table.txt"], "Give a path in a folder that you may write to"),
        (["--output", "."], "it is a folder"),
        (["--format", "html"], "html"),
        (["--preset", "slow"], "slow"),
    ],
)
def test_mistakes_get_a_message_and_no_stack_trace(arguments, message, results, capsys):
    write_results(results / "empty", [])
    (results / "damaged").mkdir()
    (results / "damaged" / "runs.jsonl").write_text('{"schema": 1, "key"\n')
    (results / "file").write_text("")
    assert main(["paper", "table", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_help_has_examples(capsys):
    assert main(["paper", "table", "--help"]) == 0
    assert "lit-gelu paper table --only mnist" in capsys.readouterr().out
