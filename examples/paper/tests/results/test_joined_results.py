"""Records of several folders as one: none lost, none twice, none mixed in silence."""

import math
from dataclasses import replace

import pytest
from paper_records import run_record

from gelu_paper.errors import RecordsError, ResultsInUseError
from gelu_paper.records.run_record import RunResult, read_records
from gelu_paper.records.run_store import RecordStore
from gelu_paper.results.joined_results import ResultsFile, join, join_into, read_results_file

RUNS = [
    run_record(seed=seed, curves={"test_error": [0.5, 0.25 + seed], "val_error": [math.nan, 0.5]}) for seed in range(4)
]


def written(folder, *records, end=""):
    folder.mkdir(exist_ok=True)
    (folder / "runs.jsonl").write_text("".join(f"{record.to_json()}\n" for record in records) + end, encoding="utf-8")
    return read_results_file(folder)


def keys_and_lines(folder):
    return [record.key for record in read_records(folder)], (folder / "runs.jsonl").read_text().splitlines()


def again(record, **changes):
    """Return the record of the same run made another time."""
    return replace(record, started="2026-02-02T00:00:00+00:00", seconds=2.0, machine={"cores": 2}, **changes)


def test_every_run_is_there_once_in_order_of_the_folders(tmp_path):
    files = [written(tmp_path / "a", RUNS[2], RUNS[0]), written(tmp_path / "b", RUNS[0], RUNS[1])]
    joined = join_into(tmp_path / "all", files)
    expected = [RUNS[2], RUNS[0], RUNS[1]]
    keys, lines = keys_and_lines(tmp_path / "all")
    assert keys == [record.key for record in expected]
    assert lines == [record.to_json() for record in expected]
    assert (joined.identical, joined.repeated, joined.differing) == (1, [], [])


def test_what_the_target_holds_stays_and_comes_first(tmp_path):
    written(tmp_path / "all", RUNS[3])
    join_into(tmp_path / "all", [written(tmp_path / "a", RUNS[0])])
    assert keys_and_lines(tmp_path / "all")[0] == [RUNS[3].key, RUNS[0].key]
    before = (tmp_path / "all" / "runs.jsonl").stat()
    join_into(tmp_path / "all", [read_results_file(tmp_path / "a"), read_results_file(tmp_path / "all")])
    after = (tmp_path / "all" / "runs.jsonl").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)  # nothing new, nothing written


def test_a_run_made_twice_with_the_same_numbers_is_taken_once_and_said(tmp_path):
    files = [written(tmp_path / "a", RUNS[0]), written(tmp_path / "b", again(RUNS[0]))]
    joined = join_into(tmp_path / "all", files)
    (text,) = joined.repeated
    assert text.startswith(f"{RUNS[0].key}: machine, started, seconds in ")
    assert "b/runs.jsonl', line 1 and in " in text
    assert keys_and_lines(tmp_path / "all")[1] == [RUNS[0].to_json()]


@pytest.mark.parametrize(("loss", "is_same"), [(0.5000001, True), (0.50001, False)])
def test_training_losses_of_a_group_may_be_rounded_elsewise(loss, is_same):
    """A replica's losses are added up in another order; all else of it is the run alone."""

    def made(loss, **changes):
        curves = {"train_loss": [0.7, loss], "test_error": [0.5, 0.25], "val_error": [math.nan, 0.5]}
        return replace(run_record(curves=curves), result=RunResult(last_train_loss=loss), **changes)

    alone, grouped = made(0.5), made(loss, group={"size": 2, "seconds": 2.0, "executor": "stacked"})
    for one, other in ((alone, grouped), (grouped, alone)):
        joined = join([ResultsFile("a", (("a", one),)), ResultsFile("b", (("b", other),))])
        assert (len(joined.repeated), len(joined.differing)) == ((1, 0) if is_same else (0, 1))
    joined = join([ResultsFile("a", (("a", alone),)), ResultsFile("b", (("b", made(loss)),))])
    assert len(joined.differing) == 1  # both alone: they should be equal
    other = replace(grouped, curves={**alone.curves, "test_error": made(loss).curves["val_error"]})
    joined = join([ResultsFile("a", (("a", alone),)), ResultsFile("b", (("b", other),))])
    assert len(joined.differing) == 1


def test_what_is_no_finite_number_in_both_is_the_same():
    def of_nan():
        return replace(RUNS[0], data={"scale": float("nan")})

    joined = join([ResultsFile("a", (("a", of_nan()),)), ResultsFile("b", (("b", of_nan()),))])
    assert (joined.identical, joined.repeated) == (1, [])


@pytest.mark.parametrize(
    "changes", [{"result": RunResult(last_test_error=0.1)}, {"status": "diverged"}, {"curves": RUNS[1].curves}]
)
def test_other_numbers_of_a_run_are_not_mixed_in_silence(tmp_path, changes):
    files = [written(tmp_path / "a", RUNS[0]), written(tmp_path / "b", RUNS[1], again(RUNS[0], **changes))]
    joined = join_into(tmp_path / "all", files)
    assert [next(iter(changes)) in text for text in joined.differing] == [True]
    assert not (tmp_path / "all").exists()
    join_into(tmp_path / "all", files, keep_first=True)
    assert keys_and_lines(tmp_path / "all")[1] == [RUNS[0].to_json(), RUNS[1].to_json()]
    join_into(tmp_path / "reversed", files[::-1], keep_first=True)
    assert keys_and_lines(tmp_path / "reversed")[1] == [RUNS[1].to_json(), again(RUNS[0], **changes).to_json()]


def test_other_numbers_than_the_target_s_leave_it_as_it_was(tmp_path):
    written(tmp_path / "all", RUNS[0])
    before = (tmp_path / "all" / "runs.jsonl").read_bytes()
    joined = join_into(tmp_path / "all", [written(tmp_path / "a", RUNS[1], again(RUNS[0], status="diverged"))])
    assert len(joined.differing) == 1
    assert (tmp_path / "all" / "runs.jsonl").read_bytes() == before


def test_another_configuration_is_refused_whatever_is_kept(tmp_path):
    other = replace(RUNS[0], config=RUNS[0].config | {"trainer": {"precision": "bf16-mixed"}})
    files = [written(tmp_path / "a", RUNS[0]), written(tmp_path / "b", other)]
    joined = join_into(tmp_path / "all", files, keep_first=True)
    assert [text.split(" in ")[0] for text in joined.incompatible] == [f"{RUNS[0].key}: config"]
    assert not (tmp_path / "all").exists()


def test_presets_are_not_mixed(tmp_path):
    quick = run_record(seed=7, preset="quick")
    with pytest.raises(RecordsError, match=r"of preset full \(.*line 1\) and of preset quick \(.*line 2\)"):
        join([written(tmp_path / "a", RUNS[0], quick)])


def test_a_copy_of_another_record_than_the_one_kept_is_left_out(tmp_path):
    def copy(source):
        return replace(source, key="other/name", experiment="other", shared_from=source.key)

    other = again(RUNS[0], curves=RUNS[1].curves)
    files = [written(tmp_path / "a", RUNS[0]), written(tmp_path / "b", other, copy(other))]
    joined = join_into(tmp_path / "all", files, keep_first=True)
    assert joined.orphaned == [f"other/name has other numbers than {RUNS[0].key}, whose copy it is"]
    assert keys_and_lines(tmp_path / "all")[0] == [RUNS[0].key]

    files = [written(tmp_path / "a", RUNS[0]), written(tmp_path / "b", again(RUNS[0]), copy(again(RUNS[0])))]
    assert join_into(tmp_path / "same", files).orphaned == []
    assert keys_and_lines(tmp_path / "same")[0] == [RUNS[0].key, "other/name"]


def test_every_damaged_line_is_said_and_the_others_are_read(tmp_path):
    written(tmp_path / "a", RUNS[0])
    with (tmp_path / "a" / "runs.jsonl").open("ab") as file:
        file.write(
            b'{"schema": 1}\n\n\xff\xfe\n' + RUNS[1].to_json().encode() + b"\n" + RUNS[2].to_json().encode()[:50]
        )
    found = read_results_file(tmp_path / "a")
    assert [record.key for _, record in found.records] == [RUNS[0].key, RUNS[1].key]
    first, second = found.damaged
    assert "runs.jsonl', line 2: " in first
    assert "runs.jsonl', line 4: The line is not UTF-8" in second
    assert found.cut


def test_a_damaged_target_is_refused_and_stays_as_it_was(tmp_path):
    written(tmp_path / "all", RUNS[0], end="{}\n")
    before = (tmp_path / "all" / "runs.jsonl").read_bytes()
    with pytest.raises(RecordsError, match="line 2"):
        join_into(tmp_path / "all", [written(tmp_path / "a", RUNS[1])])
    assert (tmp_path / "all" / "runs.jsonl").read_bytes() == before


def test_a_target_that_is_being_written_to_is_refused(tmp_path):
    with RecordStore(tmp_path / "all"), pytest.raises(ResultsInUseError):
        join_into(tmp_path / "all", [written(tmp_path / "a", RUNS[0])])


def test_a_failure_while_writing_leaves_the_target_as_it_was(tmp_path, monkeypatch):
    written(tmp_path / "all", RUNS[0])
    before = (tmp_path / "all" / "runs.jsonl").read_bytes()
    files = [written(tmp_path / "a", RUNS[1], RUNS[2])]

    def fail(record):
        if record.key == RUNS[2].key:
            raise OSError("no room")
        return "half a file"

    monkeypatch.setattr("gelu_paper.records.run_record.RunRecord.to_json", fail)
    with pytest.raises(OSError, match="no room"):
        join_into(tmp_path / "all", files)
    assert (tmp_path / "all" / "runs.jsonl").read_bytes() == before
    assert {path.name for path in (tmp_path / "all").iterdir()} == {"runs.jsonl", ".lock"}


def by_another_protocol(record):
    return replace(record, config={**record.config, "trainer": {"precision": "bf16-mixed"}})


def on_other_data(record):
    return replace(record, data={"vectors": "mine.txt"})


@pytest.mark.parametrize("change", [by_another_protocol, on_other_data])
@pytest.mark.parametrize("is_in_target", [False, True])
def test_runs_of_two_protocols_are_refused_before_anything_is_written(tmp_path, change, is_in_target):
    """Results with both could serve no table, and no run could be added to them."""
    ours, others = tmp_path / ("all" if is_in_target else "a"), tmp_path / "b"
    files = [written(ours, RUNS[0]), written(others, change(RUNS[1]))]
    with pytest.raises(RecordsError, match="different protocols"):
        join_into(tmp_path / "all", files[1:] if is_in_target else files)
    assert (tmp_path / "all").exists() == is_in_target
    assert keys_and_lines(ours) == ([RUNS[0].key], [RUNS[0].to_json()])


def test_two_experiments_need_no_common_protocol(tmp_path):
    other = by_another_protocol(run_record("cifar10"))
    join_into(tmp_path / "all", [written(tmp_path / "a", RUNS[0]), written(tmp_path / "b", other)])
    assert keys_and_lines(tmp_path / "all")[0] == [RUNS[0].key, other.key]


def test_runs_of_another_experiment_are_added_to_what_mixes_two_protocols_already(tmp_path):
    """Results of an earlier version may: to that experiment nothing is added, and it is said where it is."""
    mixed = [RUNS[0], by_another_protocol(RUNS[1])]
    written(tmp_path / "all", *mixed)
    other = run_record("cifar10")
    join_into(tmp_path / "all", [written(tmp_path / "b", other, mixed[1])])
    keys = [record.key for record in (*mixed, other)]
    assert keys_and_lines(tmp_path / "all")[0] == keys
    with pytest.raises(RecordsError, match="different protocols") as error:
        join_into(tmp_path / "all", [written(tmp_path / "c", RUNS[2])])
    assert str(tmp_path / "all" / "runs.jsonl") in str(error.value)
    assert keys_and_lines(tmp_path / "all")[0] == keys


def test_the_message_names_the_files_of_two_protocols(tmp_path):
    files = [written(tmp_path / "a", RUNS[0]), written(tmp_path / "b", by_another_protocol(RUNS[1]))]
    with pytest.raises(RecordsError) as error:
        join_into(tmp_path / "all", files)
    assert all(f"({str(tmp_path / name / 'runs.jsonl')!r}, line 1)" in str(error.value) for name in "ab")
