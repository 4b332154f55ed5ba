"""``lit-gelu paper merge``: what it says, and its exit codes."""

from dataclasses import replace

import pytest
from paper_records import run_record

from lit_gelu.cli.main import main
from gelu_paper.records.run_record import read_records

RUNS = [run_record(seed=seed, curves={"test_error": [0.25 + seed]}) for seed in range(12)]


def written(folder, *records, end=""):
    folder.mkdir()
    (folder / "runs.jsonl").write_text("".join(f"{record.to_json()}\n" for record in records) + end, encoding="utf-8")
    return str(folder)


def merged(target, *arguments):
    return main(["paper", "merge", *arguments, "--results", str(target)])


def test_folders_and_files_are_joined(tmp_path, capsys):
    first, second = written(tmp_path / "a", *RUNS[:2]), written(tmp_path / "b", *RUNS[1:3])
    (tmp_path / "b" / "runs.jsonl").rename(tmp_path / "b" / "records")  # whatever the file is called
    assert merged(tmp_path / "all", first, f"{second}/records", first) == 0
    captured = capsys.readouterr()
    assert captured.out == f"3 runs in {tmp_path / 'all' / 'runs.jsonl'}; 4 read from 2 files, 1 of them in several\n"
    assert captured.err == ""
    assert [record.key for record in read_records(tmp_path / "all")] == [record.key for record in RUNS[:3]]


def test_runs_in_several_folders_are_counted_whoever_made_them(tmp_path, capsys):
    """One run copied, one made again in the same time but for the seconds, one made again with other numbers."""
    again = [RUNS[0], replace(RUNS[1], seconds=2.0), replace(RUNS[2], status="diverged"), RUNS[3]]
    folders = [written(tmp_path / "a", *RUNS[:3]), written(tmp_path / "b", *again), written(tmp_path / "c", RUNS[0])]
    for _ in range(2):  # the second time the target holds them too, which is no folder that was given
        assert merged(tmp_path / "all", *folders, "--keep", "first") == 0
        captured = capsys.readouterr()
        assert captured.out.endswith("; 8 read from 3 files, 3 of them in several\n")
        assert "1 runs were made more than once, with the same numbers" in captured.err


def test_other_numbers_stop_it_unless_the_first_are_kept(tmp_path, capsys):
    first = written(tmp_path / "a", *RUNS)
    second = written(tmp_path / "b", *(replace(run, status="diverged") for run in RUNS))
    assert merged(tmp_path / "all", first, second) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(
        f"12 runs were made more than once, with other numbers:\n  {RUNS[0].key}: status in "
    )
    assert captured.err.endswith(
        "and 2 more\nNothing is written. Give --keep first to take the first of each, in the order given.\n"
    )
    assert not (tmp_path / "all").exists()

    assert merged(tmp_path / "all", first, second, "--keep", "first") == 0
    assert capsys.readouterr().err.endswith("Of each the first is taken.\n")
    assert {record.status for record in read_records(tmp_path / "all")} == {"finished"}


def test_runs_of_another_configuration_stop_it_in_any_case(tmp_path, capsys):
    other = written(tmp_path / "b", replace(RUNS[0], config={**RUNS[0].config, "trainer": {"max_epochs": 1}}))
    assert merged(tmp_path / "all", written(tmp_path / "a", RUNS[0]), other, "--keep", "first") == 1
    error = capsys.readouterr().err
    assert error.startswith(f"1 runs of the same name are other runs:\n  {RUNS[0].key}: config in ")
    assert "Nothing is written. Leave one of the folders out" in error
    assert not (tmp_path / "all").exists()


def test_damaged_lines_are_said_and_the_rest_is_joined(tmp_path, capsys):
    first = written(tmp_path / "a", RUNS[0], end="{}\n")
    second = written(tmp_path / "b", RUNS[1], end=RUNS[2].to_json()[:30])
    assert merged(tmp_path / "all", first, second) == 1
    error = capsys.readouterr().err
    assert "a/runs.jsonl', line 2: A record of schema" in error
    assert "b/runs.jsonl': the last line is cut off" in error
    assert len(read_records(tmp_path / "all")) == 2
    assert merged(tmp_path / "second", second) == 0  # a run that is still being written is no damage


@pytest.mark.parametrize(("arguments", "message"), [(["{}/none"], "There are no runs in"), ([], "FOLDERS is required")])
def test_mistakes(tmp_path, capsys, arguments, message):
    assert merged(tmp_path / "all", *(text.format(tmp_path) for text in arguments)) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "all").exists()
