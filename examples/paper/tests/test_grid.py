"""What is missing is made, once, and what is finished is not made again, whatever ends the command."""

import json
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import pytest
from digits_grid import DIGITS, cell_of

from gelu_paper import grid, request
from gelu_paper.engines import by_processes, by_ray
from gelu_paper.grid import GridRunner, records_of
from gelu_paper.records import RECORDS_FILE
from gelu_paper.request import Request
from gelu_paper.training import RunOptions, train
from lit_gelu.errors import ArgumentError, MissingExtraError, UnsupportedRunError

GELU, RELU, COPY = "mnist/gelu/keep=1/lr=0.001/seed=0", "mnist/relu/keep=1/lr=0.001/seed=0", "phi_quality"


def here(cells, keys=None):
    """An engine that trains in this process, and notes what it trains."""
    for cell in cells:
        if keys is not None:
            keys.append(cell.key)
        yield cell, train(cell, RunOptions())


def run(folder, engine=here, only=(), **arguments):
    return GridRunner(Request("quick", only, **arguments), folder, engine, report=lambda _: None).run()


def without_times(record):
    return replace(record, started="", seconds=0.0)


def test_two_runs_are_trained_and_the_identical_one_of_another_experiment_is_copied(digits, tmp_path):
    keys = []
    tally = run(tmp_path, partial(here, keys=keys))
    records = records_of(tmp_path)
    assert keys == [GELU, RELU]
    assert (tally.finished, tally.trained, tally.copied) == (0, 2, 1)
    (copy,) = [record for key, record in records.items() if key.startswith(COPY)]
    assert (copy.shared_from, copy.curves, copy.robustness) == (GELU, records[GELU].curves, None)
    assert records[GELU].robustness is not None


def test_what_is_finished_is_not_trained_again(digits, tmp_path):
    run(tmp_path, arms=("gelu",), only=("mnist",))
    before = (tmp_path / RECORDS_FILE).read_bytes()
    keys = []
    tally = run(tmp_path, partial(here, keys=keys))
    assert keys == [RELU]
    assert (tally.finished, tally.trained, tally.copied) == (1, 1, 1)
    assert (tmp_path / RECORDS_FILE).read_bytes().startswith(before)
    assert run(tmp_path, partial(here, keys=keys)).finished == 3
    assert keys == [RELU]


def test_a_line_that_a_kill_cut_off_is_trained_again(digits, tmp_path):
    run(tmp_path, only=("mnist",))
    file = tmp_path / RECORDS_FILE
    records = records_of(tmp_path)
    file.write_bytes(file.read_bytes()[:-20])
    keys = []
    run(tmp_path, partial(here, keys=keys), only=("mnist",))
    assert keys == [RELU]
    again = records_of(tmp_path)
    assert {key: without_times(one) for key, one in again.items()} == {
        key: without_times(one) for key, one in records.items()
    }


def test_a_run_that_fails_does_not_stop_the_others(digits, tmp_path):
    def engine(cells):
        for cell in cells:
            yield cell, ValueError("no luck") if cell.arm == "gelu" else train(cell, RunOptions())

    tally = run(tmp_path, engine)
    assert list(records_of(tmp_path)) == [RELU]
    assert tally.failed.keys() == {GELU}
    assert run(tmp_path).trained == 1  # the same command makes it then


def test_experiments_whose_data_are_missing_are_left_out(digits, monkeypatch, tmp_path):
    other = replace(DIGITS, name="tweets", data="lit_gelu.data.TweetData", data_args={}, robustness_levels=())
    monkeypatch.setattr(request, "preset", lambda name: {"mnist": DIGITS, "tweets": other})
    runner = GridRunner(Request("quick", arms=("relu",)), tmp_path, here, str(tmp_path), lambda _: None)
    tally = runner.run()
    assert tally.missing.keys() == {"tweets"}
    assert list(records_of(tmp_path)) == [RELU]


@pytest.mark.parametrize(
    "change",
    [{"epochs": 2}, {"task_args": {**DIGITS.task_args, "hidden_layers": 3}}, {"data_args": {"batch_size": 64}}],
    ids=str,
)
def test_runs_of_two_protocols_do_not_share_a_folder(digits, change, monkeypatch, tmp_path):
    run(tmp_path, only=("mnist",), arms=("gelu",))
    monkeypatch.setattr(request, "preset", lambda name: {"mnist": replace(DIGITS, **change)})
    with pytest.raises(ArgumentError):
        run(tmp_path)
    with pytest.raises(ArgumentError):
        run(tmp_path, arms=("relu",))
    assert list(records_of(tmp_path)) == [GELU]


def hold(folder, event):
    with grid.FileLock(folder / ".lock"):
        event.set()
        time.sleep(60)


def test_two_commands_do_not_write_to_one_folder(digits, tmp_path):
    context = multiprocessing.get_context("spawn")
    event = context.Event()
    holder = context.Process(target=hold, args=(tmp_path, event), daemon=True)
    holder.start()
    assert event.wait(60)
    with pytest.raises(UnsupportedRunError):
        run(tmp_path)
    holder.kill()
    holder.join()
    assert run(tmp_path, only=("mnist",), arms=("relu",)).trained == 1  # a lock goes with its process


class TestSearch:
    """CIFAR-10's learning rate is chosen on held-out images, then the net is trained on all."""

    @pytest.fixture
    def engine(self, record_of):
        def train_by_table(cells):
            for cell in cells:
                value = {1e-3: 0.3, 1e-4: 0.2, 1e-5: 0.4}[cell.learning_rate]
                shape = record_of(experiment="cifar10_search", keep=None, val_error=[value], test_error=[value])
                status = "diverged" if cell.arm == "elu" else "finished"
                keys = {"key": cell.key, "experiment": cell.experiment, "arm": cell.arm, "seed": cell.seed}
                config = json.loads(json.dumps(cell.config))
                yield (
                    cell,
                    replace(shape, **keys, config=config, status=status, learning_rate=cell.learning_rate),
                )

        return train_by_table

    @pytest.fixture(autouse=True)
    def without_data(self, monkeypatch):
        monkeypatch.setattr(grid, "prepare", lambda *arguments: None)

    def test_an_arm_is_trained_at_the_rate_that_its_search_chose(self, engine, tmp_path):
        runner = GridRunner(Request("full", ("cifar10",), ("gelu", "relu")), tmp_path, engine, report=lambda _: None)
        tally = runner.run()
        assert (tally.trained, tally.failed) == (2 * 3 + 2 * 3, {})
        rates = {run.learning_rate for run in records_of(tmp_path).values() if run.experiment == "cifar10"}
        assert rates == {1e-4}

    def test_an_arm_whose_search_diverged_is_not_trained(self, engine, tmp_path):
        tally = GridRunner(Request("full", ("cifar10",)), tmp_path, engine, report=lambda _: None).run()
        assert tally.failed.keys() == {"cifar10/elu"}
        assert {run.arm for run in records_of(tmp_path).values() if run.experiment == "cifar10"} == {"gelu", "relu"}

    def test_an_incomplete_search_chooses_nothing(self, engine, tmp_path):
        def some(cells):
            return ((cell, run if cell.learning_rate != 1e-5 else OSError("no")) for cell, run in engine(cells))

        tally = GridRunner(Request("full", ("cifar10",), ("gelu",)), tmp_path, some, report=lambda _: None).run()
        assert "cifar10/gelu" in tally.failed
        assert all(run.experiment == "cifar10_search" for run in records_of(tmp_path).values())


def test_processes_make_what_this_process_makes(tmp_path):
    cells = [cell_of("gelu"), cell_of("relu")]
    records = {cell.key: without_times(record) for cell, record in by_processes(cells, RunOptions(), workers=2)}
    assert records == {cell.key: without_times(train(cell, RunOptions())) for cell in cells}


def test_an_error_in_a_process_is_handed_on():
    cell = cell_of("gelu")
    broken = replace(cell, config={**cell.config, "model": {"class_path": "lit_gelu.tasks.Nothing", "init_args": {}}})
    ((failed, error),) = by_processes([broken], RunOptions(), workers=1)
    assert failed is broken
    assert isinstance(error, AttributeError)


def test_a_process_that_is_killed_ends_the_command_and_leaves_what_is_finished(digits, tmp_path):
    def engine(cells):
        outcomes = by_processes(cells, RunOptions(), workers=1)
        yield next(outcomes)
        for child in multiprocessing.active_children():
            child.kill()
        yield from outcomes

    with pytest.raises(UnsupportedRunError):
        run(tmp_path, engine, only=("mnist",))
    assert list(records_of(tmp_path)) == [GELU]


COMMAND = """
from functools import partial
from pathlib import Path
import digits_grid
from gelu_paper import grid, request
from gelu_paper.engines import by_processes
from gelu_paper.training import RunOptions
if __name__ == "__main__":
    request.preset = lambda name: {"mnist": digits_grid.replace(digits_grid.DIGITS, epochs=3000)}
    engine = partial(by_processes, options=RunOptions(), workers=1)
    say = partial(print, flush=True)
    grid.GridRunner(request.Request("quick"), Path("results"), engine, report=say).run()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_processes_end_with_a_command_that_is_killed(tmp_path):
    (tmp_path / "command.py").write_text(COMMAND)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = subprocess.Popen([sys.executable, "command.py"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE)
    assert b"2 are to be trained" in command.stdout.readline()
    children, end = [], time.monotonic() + 120
    while len(children) < 2 and time.monotonic() < end:  # one that trains, and the tracker of shared resources
        time.sleep(0.1)
        with pathlib.Path(f"/proc/{command.pid}/task/{command.pid}/children").open() as file:
            children = file.read().split()
    command.send_signal(signal.SIGKILL)
    command.wait()
    while any(is_alive(child) for child in children) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(is_alive(child) for child in children)


def is_alive(process):
    try:
        with pathlib.Path(f"/proc/{process}/stat").open() as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.ray
def test_ray_makes_what_this_process_makes_and_hands_errors_on():
    cells = [cell_of("gelu"), cell_of("relu")]
    model = {"class_path": "lit_gelu.tasks.Nothing", "init_args": {}}
    broken = replace(cells[0], key="broken", config={**cells[0].config, "model": model})
    outcomes = by_ray([*cells, broken], RunOptions(), workers=2, address=None, gpus=0)
    results = {cell.key: outcome for cell, outcome in outcomes}
    assert isinstance(results.pop("broken"), AttributeError)
    assert {key: without_times(one) for key, one in results.items()} == {
        cell.key: without_times(train(cell, RunOptions())) for cell in cells
    }


@pytest.mark.ray
def test_a_cluster_that_is_not_there_is_an_error():
    with pytest.raises(UnsupportedRunError):
        next(by_ray([cell_of("gelu")], RunOptions(), workers=1, address="ray-nowhere", gpus=0))


def test_without_ray_the_extra_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError):
        next(by_ray([cell_of("gelu")], RunOptions(), workers=1, address=None, gpus=0))


def test_the_first_of_identical_runs_measures_all_that_any_of_them_does():
    noisy, plain = cell_of("gelu"), replace(cell_of("gelu"), key="other")
    plain.config["measurement"]["robustness_levels"] = []
    ((first, second),), copies = grid.missing_runs([plain, noisy], {})
    assert (first, second, copies) == (noisy, plain, [])


def test_a_search_is_decided_by_its_validation_errors(record_of):
    runs = [
        record_of(rate=rate, experiment="cifar10_search", keep=None, val_error=[error], test_error=[1 - error])
        for rate, error in ((1e-3, 0.3), (1e-4, 0.2), (1e-5, 0.4))
    ]
    asked = Request("full", ("cifar10",), ("gelu",))
    search, main = asked.experiments()
    keys = {cell.learning_rate: cell.key for cell in asked.cells(search)}
    records = {keys[run.learning_rate]: run for run in runs}
    assert grid.searched_rates(main, asked, records) == {"gelu": 1e-4}
