"""Parts of a grid: disjoint, complete, the same after a kill, and aware of what the others have made."""

from dataclasses import replace

import pytest
from paper_records import run_record
from paper_runs import DIGITS, FINAL, SEARCH, SHARING, InlinePool, Log, request, run, without_times

from gelu_paper.errors import OtherConfigurationError, PaperArgumentError
from gelu_paper.grid_runner import Runner
from gelu_paper.planning import RunRequest
from gelu_paper.records.run_store import RecordStore
from gelu_paper.shards import Shard, parse_shard, records_of_others

COUNTS = (1, 2, 3, 7)


def parts(wanted, count):
    return [replace(wanted, shard=Shard(index, count)) for index in range(1, count + 1)]


@pytest.mark.parametrize("count", COUNTS)
def test_every_run_of_the_full_preset_is_in_one_part_and_the_parts_are_of_a_size(count):
    wanted = RunRequest("full")
    everything = [cell.key for cell in wanted.first_cells()]
    cells = [part.first_cells() for part in parts(wanted, count)]
    assert sorted(cell.key for part in cells for cell in part) == sorted(everything)
    prints = [{cell.fingerprint for cell in part} for part in cells]
    assert sum(map(len, prints)) == len(set.union(*prints))  # identical runs are trained in one part only
    assert max(map(len, prints)) - min(map(len, prints)) <= 1
    for experiment in ("mnist", "autoencoder"):
        shares = [sum(cell.experiment == experiment for cell in part) for part in cells]
        assert max(shares) - min(shares) <= 2


@pytest.mark.parametrize("count", COUNTS)
def test_runs_with_searched_rates_are_in_the_same_part_whatever_rates_are_known(count):
    wanted = request(SEARCH, replace(FINAL, seeds=5))
    experiment = wanted.experiments()[1]
    places = {"gelu": set(), "relu": set()}
    for index, part in enumerate(parts(wanted, count)):
        for arm, found in places.items():
            alone = {(cell.seed, index) for cell in part.later_cells(experiment, {arm: 0.5})}
            both = part.later_cells(experiment, {"gelu": 0.1, "relu": 0.5})
            assert alone == {(cell.seed, index) for cell in both if cell.arm == arm}
            found |= alone
        assert part.later_cells(experiment, {}) == []
    assert [sorted(seed for seed, _ in found) for found in places.values()] == [list(range(5))] * 2


def test_text():
    assert parse_shard("2/8") == Shard(2, 8)
    assert Shard(2, 8).name == "shard-2-of-8"


@pytest.mark.parametrize("text", ["", "2", "2/", "a/b", "1/2/3", "-1/2", "1.0/2", "\u0662/\u0663", "9" * 5000 + "/1"])
def test_other_text_is_refused(text):
    with pytest.raises(PaperArgumentError, match="accepted: I/N, such as 2/8"):
        parse_shard(text)


@pytest.mark.parametrize("text", ["0/4", "5/4", "1/0", "0/0"])
def test_parts_that_do_not_exist_are_refused(text):
    with pytest.raises(PaperArgumentError, match=f"Shard {text} given; accepted: 1/.*count from 1"):
        parse_shard(text)


def part_run(folder, wanted, pool=None):
    """Make a part's runs as the command does."""
    own = folder / wanted.shard.name
    with RecordStore(own) as store:
        elsewhere = lambda: records_of_others(folder, own)  # noqa: E731
        return Runner(wanted, store, pool or InlinePool(), Log(), elsewhere).run()


def test_parts_together_give_what_one_command_gives(tmp_path):
    wanted = request(replace(DIGITS, seeds=1), replace(SHARING, seeds=1))
    _, expected = run(tmp_path / "one", wanted)
    made = []
    for part in parts(wanted, 2):
        first = InlinePool(stop_after=1)
        with pytest.raises(KeyboardInterrupt):  # as if killed after a run
            part_run(tmp_path, part, first)
        second = InlinePool()
        part_run(tmp_path, part, second)
        made += first.trained + second.trained
    assert sorted(made) == sorted(key for key, record in expected.items() if record.shared_from is None)
    assert without_times(records_of_others(tmp_path, tmp_path)) == without_times(expected)


def test_searched_rates_come_from_the_search_s_other_parts(tmp_path):
    wanted = request(SEARCH, FINAL)
    first, second = parts(wanted, 2)
    summary = part_run(tmp_path, first)
    assert (summary.trained, summary.not_made) == (2, 2)
    assert "Other shards take part in it" in summary.failures[0][1].message
    summary = part_run(tmp_path, second)
    assert summary.not_made == 0
    summary = part_run(tmp_path, first)
    assert (summary.finished, summary.not_made) == (2, 0)
    _, expected = run(tmp_path / "one", wanted)
    found = records_of_others(tmp_path, tmp_path)
    assert found.keys() == expected.keys()
    assert {key: record.curves for key, record in found.items()} == {k: record.curves for k, record in expected.items()}


def test_a_search_of_another_configuration_chooses_nothing(tmp_path):
    first, second = parts(request(SEARCH, FINAL), 2)
    part_run(tmp_path, replace(second, precision="64-true"))
    with pytest.raises(OtherConfigurationError, match="'64-true' in the results, '32-true' now"):
        part_run(tmp_path, first)


def test_others_are_all_parts_of_any_number_and_what_was_merged(tmp_path):
    def put(folder, seed, end=""):
        folder.mkdir(exist_ok=True)
        (folder / "runs.jsonl").write_text(f"{run_record(seed=seed).to_json()}\n{end}", encoding="utf-8")
        return run_record(seed=seed).key

    unended = run_record(seed=5).to_json()[:-2]  # its part takes it away and makes it again
    expected = {
        put(tmp_path, 0),
        put(tmp_path / "shard-1-of-2", 1),
        put(tmp_path / "shard-3-of-4", 2, end=f"{{}}\n{unended}"),
    }
    put(tmp_path / "shard-2-of-4", 3)  # one's own
    put(tmp_path / "other", 4)
    assert set(records_of_others(tmp_path, tmp_path / "shard-2-of-4")) == expected
    assert records_of_others(tmp_path / "none", tmp_path / "none") == {}
