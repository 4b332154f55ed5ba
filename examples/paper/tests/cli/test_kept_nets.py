"""Which runs are said to have no checkpoint: with searched learning rates, and of shards."""

from dataclasses import replace

from paper_records import run_record
from paper_runs import FINAL, SEARCH, request

from gelu_paper.cli.kept_nets import say_runs_without

RUNS = {
    record.key: record
    for record in [
        *(run_record("search", arm, learning_rate=rate) for arm in ("gelu", "relu") for rate in (1e-2, 1e-8)),
        *(run_record("final", arm, seed, learning_rate=1e-2) for arm in ("gelu", "relu") for seed in (0, 1)),
    ]
}
GELU = [key for key in RUNS if "/gelu/" in key]


def said(capsys, tmp_path, new=(), records=RUNS):
    say_runs_without(request(SEARCH, FINAL, arms=("gelu",)), records, new, tmp_path)
    return capsys.readouterr().err.splitlines()[1:-1]


def test_runs_that_were_asked_for_whatever_their_searched_learning_rate_is(tmp_path, capsys):
    assert said(capsys, tmp_path) == [f"  {key}" for key in GELU]
    assert said(capsys, tmp_path, GELU[1:]) == [f"  {GELU[0]}"]
    assert said(capsys, tmp_path, GELU) == []


def test_those_of_shards_and_of_before_are_found(tmp_path, capsys):
    for folder, key in (("checkpoints", GELU[0]), ("shard-2-of-2/checkpoints", GELU[3])):
        (tmp_path / folder / key).parent.mkdir(parents=True)
        (tmp_path / folder / f"{key}.ckpt").write_text("")
    assert said(capsys, tmp_path) == [f"  {key}" for key in GELU[1:3]]


def test_a_copy_recorded_now_of_a_run_without_one_has_none(tmp_path, capsys):
    copies = RUNS | {GELU[3]: replace(RUNS[GELU[3]], shared_from=GELU[0])}
    assert said(capsys, tmp_path, GELU[1:], copies) == [f"  {GELU[0]}", f"  {GELU[3]}, identical to {GELU[0]}"]


def test_those_whose_checkpoint_could_not_be_written_are_said_apart(tmp_path, capsys):
    copies = RUNS | {GELU[3]: replace(RUNS[GELU[3]], shared_from=GELU[0])}
    say_runs_without(request(SEARCH, FINAL, arms=("gelu",)), copies, GELU, tmp_path, {GELU[0]})
    assert capsys.readouterr().err == (
        "2 runs have no checkpoint, as it could not be written:\n"
        f"  {GELU[0]}\n  {GELU[3]}, identical to {GELU[0]}\n"
        "To get one, give another folder (--results), or delete the lines of these runs in runs.jsonl and give the "
        "same command again.\n"
    )
