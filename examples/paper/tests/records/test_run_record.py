"""Records of runs and the file that holds them."""

import errno
import io
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from child_processes import end_of, started

from lit_gelu.files import UnwritablePathError
from gelu_paper.errors import RecordsError, ResultsInUseError
from gelu_paper.records.run_record import Curve, Robustness, RunRecord, RunResult, read_records
from gelu_paper.records.run_store import RecordStore

RECORD = RunRecord(
    key="mnist/gelu/keep=0.5/lr=0.001/seed=0",
    preset="quick",
    experiment="mnist",
    arm="gelu",
    activation="gelu(approximate='tanh')",
    setting={"keep": 0.5},
    learning_rate=1e-3,
    seed=0,
    config={"model": {"class_path": "m", "init_args": {"keep": 0.5}}, "data": {}, "trainer": {}, "measurement": {}},
    versions={"torch": "2.11"},
    machine={"cores": 2},
    started="2016-06-27T00:00:00+00:00",
    seconds=1.5,
    curves={"train_loss": Curve((0.5, 1.0), (0.25, 0.1)), "val_error": Curve((1.0,), (0.2,))},
    result=RunResult(best_val_epoch=1.0, best_val_error=0.2),
)


def test_a_record_of_the_schema_before_is_read():
    before = json.loads(RECORD.to_json())
    del before["group"]
    read = RunRecord.from_json(json.dumps(before | {"schema": 1}))
    assert read == RECORD
    assert (read.schema, read.group) == (2, None)


def test_a_group_stays_in_the_record():
    grouped = replace(RECORD, group={"size": 3, "seconds": 3.0, "executor": "stacked"})
    assert RunRecord.from_json(grouped.to_json()) == grouped
    with pytest.raises(RecordsError, match="group=3 given"):
        RunRecord.from_json(json.dumps(json.loads(RECORD.to_json()) | {"group": 3}))


def test_a_record_is_one_line_of_the_agreed_json():
    line = RECORD.to_json()
    assert "\n" not in line
    given = json.loads(line)
    assert given["schema"] == 2
    assert given["curves"]["train_loss"] == {"epoch": [0.5, 1.0], "value": [0.25, 0.1]}
    assert given["robustness"] is None
    assert given["result"]["best_val_error"] == 0.2
    assert RunRecord.from_json(line) == RECORD


def test_numbers_that_are_not_finite_are_null():
    robustness = Robustness((0.0, 1.0), (0.1, 0.9), (0.5, math.inf))
    record = replace(
        RECORD, curves={"train_loss": Curve((1.0, 2.0), (math.nan, math.inf))}, robustness=robustness, status="diverged"
    )
    line = record.to_json()
    assert "NaN" not in line
    assert "Infinity" not in line
    back = RunRecord.from_json(line)
    assert back.status == "diverged"
    assert all(math.isnan(value) for value in back.curves["train_loss"].value)
    assert back.robustness is not None
    assert back.robustness.loss[0] == 0.5
    assert math.isnan(back.robustness.loss[1])


def test_a_curve_has_as_many_epochs_as_values():
    with pytest.raises(RecordsError, match="2 epochs and 1 values"):
        Curve((1.0, 2.0), (0.1,))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[]", "schema None"),
        ('{"schema": 3}', "schema 3 given"),
        (json.dumps(json.loads(RECORD.to_json()) | {"status": "killed"}), "status='killed'"),
        (json.dumps({k: v for k, v in json.loads(RECORD.to_json()).items() if k != "seed"}), "seed"),
        (json.dumps(json.loads(RECORD.to_json()) | {"colour": "red"}), "colour"),
        (json.dumps({k: v for k, v in json.loads(RECORD.to_json()).items() if k != "curves"}), "curves"),
        (json.dumps(json.loads(RECORD.to_json()) | {"setting": {"keep": None}}), "setting=None .*finite numbers"),
        (json.dumps(json.loads(RECORD.to_json()) | {"result": {"best_val_error": "x"}}), "result='x' .*and null"),
        (json.dumps(json.loads(RECORD.to_json()) | {"learning_rate": 10**400}), "learning_rate=1000"),
        (json.dumps(json.loads(RECORD.to_json()) | {"seed": -1}), "seed=-1 .*0 and above"),
        (json.dumps(json.loads(RECORD.to_json()) | {"config": {"model": {}}}), "config=.*data, trainer, measurement"),
        (
            json.dumps(json.loads(RECORD.to_json()) | {"config": RECORD.config | {"data": {"init_args": [1]}}}),
            r"config\.data\.init_args=\[1\] given; accepted: a mapping",
        ),
        (
            json.dumps(
                json.loads(RECORD.to_json()) | {"robustness": {"levels": [0, 1, 2], "error": [0.1], "loss": [0, 0, 0]}}
            ),
            "3 levels of noise, 1 errors and 3 losses",
        ),
    ],
)
def test_a_damaged_line_is_named(tmp_path, line, message):
    file = tmp_path / "runs.jsonl"
    file.write_text(f"{RECORD.to_json()}\n{line}\n")
    with pytest.raises(RecordsError, match=rf"line 2.*{message}.*Mend or delete"):
        read_records(file)


def test_a_file_or_its_folder_is_read_in_order(tmp_path):
    second = replace(RECORD, key="b")
    (tmp_path / "runs.jsonl").write_text(f"{RECORD.to_json()}\n\n{second.to_json()}\n")
    assert read_records(tmp_path) == read_records(tmp_path / "runs.jsonl") == [RECORD, second]
    with pytest.raises(FileNotFoundError):
        read_records(tmp_path / "nothing.jsonl")


def test_two_lines_of_one_run_are_refused(tmp_path):
    (tmp_path / "runs.jsonl").write_text(f"{RECORD.to_json()}\n{RECORD.to_json()}\n")
    with pytest.raises(RecordsError, match="in line 1 and in line 2"):
        read_records(tmp_path)


def test_any_cut_of_the_last_line_leaves_the_others(tmp_path):
    """Every seventh byte, those about the ends, and those in and about a letter of two bytes."""
    first, second = f"{RECORD.to_json()}\n".encode(), f"{replace(RECORD, key='ü').to_json()}\n".encode()
    letter = second.index("ü".encode())
    about = {1, 2, *range(letter - 1, letter + 4), len(second) - 3, len(second) - 2}
    for cut in sorted(about | set(range(1, len(second) - 1, 7))):
        (tmp_path / "runs.jsonl").write_bytes(first + second[:cut])
        with pytest.warns(UserWarning, match="the last line is cut off"):
            assert read_records(tmp_path) == [RECORD]


def test_a_whole_last_line_without_its_line_break_stays(tmp_path):
    """Errors ask people to mend lines by hand, and editors may leave the last line break out."""
    file = tmp_path / "runs.jsonl"
    file.write_text(RECORD.to_json())
    assert read_records(tmp_path) == [RECORD]
    with RecordStore(tmp_path) as store:
        store.append(replace(RECORD, key="b"))
    assert [record.key for record in read_records(tmp_path)] == [RECORD.key, "b"]
    assert file.read_bytes().count(b"\n") == 2


def test_a_full_disk_leaves_the_records_that_are_there(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with RecordStore(tmp_path) as store:
        store.append(RECORD)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            with pytest.raises(UnwritablePathError, match=r"runs\.jsonl.*No space left.*Make room"):
                store.append(replace(RECORD, key="b"))
        store.append(replace(RECORD, key="c"))
    assert [record.key for record in read_records(tmp_path)] == [RECORD.key, "c"]


def test_a_store_takes_the_cut_line_away_and_goes_on(tmp_path):
    (tmp_path / "runs.jsonl").write_bytes(f"{RECORD.to_json()}\n".encode() + b'{"key": "b", "see')
    store = RecordStore(tmp_path)
    with pytest.warns(UserWarning, match="taken away"):
        store.__enter__()
    assert list(store.records) == [RECORD.key]
    store.append(replace(RECORD, key="b"))
    store.__exit__(None, None, None)
    assert [record.key for record in read_records(tmp_path)] == [RECORD.key, "b"]


def test_what_is_appended_can_be_read_at_once_and_is_written_once(tmp_path):
    with RecordStore(tmp_path / "new" / "folder") as store:
        store.append(RECORD)
        assert read_records(tmp_path / "new" / "folder") == [RECORD]
        with pytest.raises(RecordsError, match="already"):
            store.append(RECORD)
    with RecordStore(tmp_path / "new" / "folder") as store, pytest.raises(RecordsError, match="already"):
        store.append(RECORD)


def test_a_record_is_on_the_disk_when_append_returns(tmp_path, monkeypatch):
    synchronised = []
    fsync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: synchronised.append(os.fstat(descriptor).st_size) or fsync(descriptor)
    )
    with RecordStore(tmp_path) as store:
        store.append(RECORD)
    assert synchronised[0] == len(RECORD.to_json()) + 1


def test_what_the_system_takes_in_parts_is_written_whole(tmp_path, monkeypatch):
    """A write may take fewer bytes than it is given, such as on a network's disk; here seven at a time."""

    class SevenBytes(io.FileIO):
        def write(self, content):
            return super().write(content[:7])

    with monkeypatch.context() as patch, RecordStore(tmp_path) as store:
        patch.setattr(type(tmp_path), "open", lambda path, mode, buffering: SevenBytes(path, mode))
        store.append(RECORD)
        store.append(replace(RECORD, key="b"))
    assert [record.key for record in read_records(tmp_path)] == [RECORD.key, "b"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux what a descriptor is of")
def test_a_new_file_is_in_its_folder_when_append_returns(tmp_path, monkeypatch):
    """Without the folder's own synchronisation a power cut may leave a file that no folder names (man 2 fsync)."""
    synchronised, fsync = [], os.fsync

    def noting(descriptor):
        synchronised.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    with RecordStore(tmp_path) as store:
        store.append(RECORD)
        assert synchronised == [str(tmp_path / "runs.jsonl"), str(tmp_path)]
        store.append(replace(RECORD, key="b"))
        assert synchronised[2:] == [str(tmp_path / "runs.jsonl")]


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    with RecordStore(tmp_path) as store:
        store.append(RECORD)
        before = (tmp_path / "runs.jsonl").read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(OSError, match="No space left"):
                store.append(replace(RECORD, key="b"))
        assert (tmp_path / "runs.jsonl").read_bytes() == before
        store.append(replace(RECORD, key="b"))
    assert len(read_records(tmp_path)) == 2


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_trained(tmp_path, monkeypatch):
    """The superuser may write to any file, so the refusal is played."""
    with RecordStore(tmp_path) as store:
        store.append(RECORD)

    def refused(path, mode="r", *rest, **named):
        if "a" in mode:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, mode, *rest, **named)

    opened = Path.open
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refused)
        with (
            pytest.raises(UnwritablePathError, match=r"runs\.jsonl.*Permission denied.*--results"),
            RecordStore(tmp_path),
        ):
            pass
    with RecordStore(tmp_path):  # and the folder is free
        pass


def test_two_runs_do_not_write_to_one_folder(tmp_path):
    with RecordStore(tmp_path), pytest.raises(ResultsInUseError, match="Another run is writing"), RecordStore(tmp_path):
        pass
    with RecordStore(tmp_path):  # free again
        pass


def test_a_killed_process_leaves_no_lock(tmp_path):
    code = (
        "import sys\nfrom gelu_paper.records.run_store import RecordStore\n"
        f"with RecordStore({str(tmp_path)!r}):\n    print('locked', flush=True)\n    sys.stdin.read()\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with started([sys.executable, "-P", "-c", code], **pipes) as process:
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(ResultsInUseError), RecordStore(tmp_path):
            pass
        process.kill()
        end_of(process)
    with RecordStore(tmp_path) as store:
        assert store.records == {}


def test_a_damaged_file_is_refused_and_the_lock_given_back(tmp_path):
    (tmp_path / "runs.jsonl").write_text("nonsense\n")
    with pytest.raises(RecordsError, match="line 1"), RecordStore(tmp_path):
        pass
    (tmp_path / "runs.jsonl").unlink()
    with RecordStore(tmp_path):
        pass


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Give a folder that you may write to"), RecordStore(tmp_path / "file" / "x"):
        pass
