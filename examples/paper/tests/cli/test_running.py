"""``lit-gelu paper run``, on a small table of experiments; with processes of its own and without."""

import json
import signal
import sys
from dataclasses import replace

import pytest
import torch
from file_limits import files_limited_to
from paper_runs import DIGITS, FINAL, MISSING, SEARCH, SHARING, InlinePool
from replica_runs import batched_products_are_single_ones

from lit_gelu.cli.main import main
from gelu_paper.cli import running as paper_run
from gelu_paper.grid_runner import Tally
from gelu_paper.jobs import Failure, Preparation
from gelu_paper.pools.job_answer import answer
from gelu_paper.protocol import variants
from gelu_paper.protocol.experiments import EXPERIMENTS, Arm
from gelu_paper.protocol.presets import preset
from gelu_paper.protocol.variants import ProtocolVariant, own_experiments
from gelu_paper.records.run_record import read_records
from gelu_paper.records.run_store import RecordStore
from gelu_paper.results.labels import labels_of
from gelu_paper.training.cell_training import build, build_data, import_class
from lit_gelu.tasks import MNISTClassifier


class Pool(InlinePool):
    """An `InlinePool` in place of the processes."""

    stop_after: int | None = None

    def __init__(self, workers, options) -> None:
        super().__init__(options.root, type(self).stop_after)
        self.workers = workers
        self.options = options
        self.heard = []

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None: ...

    def wait(self, seconds):
        for job, message in super().wait(seconds):
            yield from ((job, how_far) for how_far in self.heard)
            yield job, message

    def answer(self, job):
        self.heard = []
        return answer(job, self.data, self.options, self.heard.append)


@pytest.fixture
def table(monkeypatch):
    """Put a small table in the place of the paper's, and no other processes; return what changes it."""

    def put(*experiments):
        monkeypatch.setattr(
            "gelu_paper.planning.experiments_of", lambda preset: {row.name: row for row in experiments}
        )

    monkeypatch.setattr("gelu_paper.cli.running.WorkerPool", Pool)
    put(replace(DIGITS, seeds=1), replace(SHARING, seeds=1))
    return put


def paper_run_in(folder, *arguments):
    return main(["paper", "run", "--results", str(folder), *arguments])


def test_runs_are_made_and_said(tmp_path, table, capsys):
    assert paper_run_in(tmp_path) == 0
    text = capsys.readouterr().out
    assert "6 runs: 0 finished before, 5 to be made, 1 identical to others" in text
    assert "[6/6] sharing/relu/keep=0.75/lr=0.01/seed=0: test error" in text
    assert "as digits/relu/keep=1/lr=0.01/seed=0" in text
    assert "0 runs were finished before, 5 made, 1 identical to others, 0 diverged, 0 not made" in text
    assert f"lit-gelu paper table --preset quick --results {tmp_path}" in text
    assert len(read_records(tmp_path)) == 6
    assert all(record.preset == "quick" for record in read_records(tmp_path))

    assert paper_run_in(tmp_path) == 0
    assert "6 runs were finished before, 0 made" in capsys.readouterr().out


def test_filters_and_precision(tmp_path, table):
    assert paper_run_in(tmp_path, "--only", "digits", "--arms", "relu", "--seeds", "0", "--precision", "64-true") == 0
    records = read_records(tmp_path)
    assert {(record.experiment, record.arm) for record in records} == {("digits", "relu")}
    assert {record.config["trainer"]["precision"] for record in records} == {"64-true"}


def test_the_default_folder_is_the_preset_s(tmp_path, table, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["paper", "run", "--preset", "full", "--only", "sharing"]) == 0
    assert len(read_records(tmp_path / "runs" / "paper" / "full")) == 2


def test_results_are_a_folder_whatever_it_is_called(tmp_path, table, capsys):
    folder = tmp_path / "x.jsonl"
    for mode in ([], ["--dry-run"]):
        (tmp_path / "file").write_text("")
        assert paper_run_in(tmp_path / "file", "--only", "sharing", *mode) == 2
        assert "is a file; accepted: a folder" in capsys.readouterr().err
    assert paper_run_in(folder, "--only", "sharing") == 0
    assert main(["paper", "merge", str(folder), "--results", str(tmp_path / "all")]) == 0
    assert len(read_records(tmp_path / "all")) == 2


def test_checkpoints(tmp_path, table):
    assert paper_run_in(tmp_path, "--only", "sharing", "--checkpoints") == 0
    found = {path.relative_to(tmp_path / "checkpoints").as_posix() for path in tmp_path.rglob("*.ckpt")}
    assert found == {f"sharing/relu/keep={keep}/lr=0.01/seed=0.ckpt" for keep in ("1", "0.75")}


def test_runs_without_a_checkpoint_are_said(tmp_path, table, capsys):
    shared, source = "sharing/relu/keep=1/lr=0.01/seed=0", "digits/relu/keep=1/lr=0.01/seed=0"
    assert paper_run_in(tmp_path, "--only", "digits", "--arms", "relu") == 0
    capsys.readouterr()
    assert paper_run_in(tmp_path, "--arms", "relu", "--checkpoints") == 0
    captured = capsys.readouterr()
    assert "2 runs were finished before, 1 made, 1 identical to others" in captured.out
    assert captured.err == (
        "3 runs have no checkpoint, as they were finished before:\n"
        f"  {source}\n  digits/relu/keep=0.5/lr=0.01/seed=0\n  {shared}, identical to {source}\n"
        "To get one, give another folder (--results), or delete the lines of these runs in runs.jsonl and give the "
        "same command again.\n"
    )
    assert paper_run_in(tmp_path / "other", "--arms", "relu", "--checkpoints") == 0
    assert capsys.readouterr().err == (
        "1 runs have no checkpoint of their own; that of the identical run is of the same net:\n"
        f"  {shared}, identical to {source}\n"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="the limit on the size of files is POSIX's")
@pytest.mark.parametrize("replicas", ["auto", "off"])
def test_runs_whose_checkpoints_cannot_be_written_are_recorded_and_said(tmp_path, table, capsys, replicas):
    with files_limited_to(100_000):  # a record is smaller, a checkpoint larger
        assert paper_run_in(tmp_path, "--only", "sharing", "--checkpoints", "--replicas", replicas) == 1
    captured, keys = capsys.readouterr(), [f"sharing/relu/keep={keep}/lr=0.01/seed=0" for keep in ("1", "0.75")]
    assert {record.key for record in read_records(tmp_path)} == set(keys)
    assert "0 runs were finished before, 2 made, 0 identical to others, 0 diverged, 0 not made" in captured.out
    assert all(
        f"{key}: WARNING: the run is recorded, its checkpoint is not kept: Cannot" in captured.out for key in keys
    )
    assert captured.err.startswith("2 runs have no checkpoint, as it could not be written:\n")
    assert all(f"  {key}\n" in captured.err for key in keys)
    assert not list(tmp_path.rglob("*.ckpt"))


def test_a_folder_of_checkpoints_that_cannot_be_written_to_is_refused_before_the_first_run(tmp_path, table, capsys):
    (tmp_path / "checkpoints").write_text("a file")
    assert paper_run_in(tmp_path, "--only", "sharing", "--checkpoints") == 2
    assert f"Cannot write '{tmp_path / 'checkpoints'}" in capsys.readouterr().err
    assert not (tmp_path / "runs.jsonl").exists()


def test_runs_are_made_together_where_they_can_be(tmp_path, table, capsys):
    for replicas, sizes in (("4", [4, 4, 4, 4]), ("off", [])):
        folder = tmp_path / replicas
        arguments = ["--only", "digits", "--replicas", replicas, "--workers", "1", "--checkpoints"]
        assert paper_run_in(folder, *arguments) == 0
        text = capsys.readouterr().out
        assert ("1 groups of them are made together" in text, "each by itself" in text) == (bool(sizes), not sizes)
        assert [record.group["size"] for record in read_records(folder) if record.group] == sizes
        assert not (folder / ".groups").exists()

    name = "checkpoints/digits/gelu/keep=0.5/lr=0.01/seed=0.ckpt"
    one, other = (MNISTClassifier.load_from_checkpoint(tmp_path / folder / name) for folder in ("4", "off"))
    for mine, its in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=1e-3)
    if not batched_products_are_single_ones((784, 128, 10), 128):
        return  # on this processor they are equal but for rounding

    # Of all records of both, each is taken once: they differ in nothing but the last digits of the training loss.
    folders = [str(tmp_path / folder) for folder in ("4", "off")]
    assert main(["paper", "merge", *folders, "--results", str(tmp_path / "all")]) == 0
    assert len(read_records(tmp_path / "all")) == 4


@pytest.mark.parametrize("elsewhere", [["--precision", "64-true"], ["--accelerator", "cuda"]])
def test_groups_are_for_the_cpu(tmp_path, table, capsys, monkeypatch, elsewhere):
    monkeypatch.setattr("gelu_paper.cli.accelerators._may_have_gpu", lambda: True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: "cuda" in elsewhere)
    assert paper_run_in(tmp_path / "none", "--only", "sharing", "--replicas", "4", *elsewhere) == 2
    assert "--replicas 4: runs are made together on the CPU, with --precision 32-true" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_a_dry_run_makes_nothing(tmp_path, table, capsys):
    table(replace(DIGITS, seeds=1), replace(SHARING, seeds=1), SEARCH, FINAL)
    assert paper_run_in(tmp_path / "none", "--dry-run") == 0
    text = capsys.readouterr().out
    assert "digits: 4 to be made, 0 identical" in text
    assert "sharing: 1 to be made, 1 identical" in text
    assert "final: 4, their learning rates from search" in text
    assert not (tmp_path / "none").exists()
    paper_run_in(tmp_path, "--only", "digits")
    capsys.readouterr()
    paper_run_in(tmp_path, "--dry-run")
    assert "finished before: 4; to be made: 5" in capsys.readouterr().out


def test_clusters_stand_in_for_word_vectors_where_asked(tmp_path, capsys):
    arguments = ["--preset", "full", "--only", "tweets", "mnist", "--dry-run"]
    assert paper_run_in(tmp_path, *arguments, "--tweet-clusters", "50mpaths2") == 0
    assert "to be made: 180" in capsys.readouterr().out
    table = own_experiments("full", ProtocolVariant("50mpaths2"))
    assert table["tweets"].data_args == {"batch_size": 16, "clusters": "50mpaths2"}
    assert table["tweets_zero_identity"].data_args == {"batch_size": 16, "clusters": "50mpaths2"}
    assert table["mnist"] == EXPERIMENTS["mnist"]
    assert own_experiments("full", ProtocolVariant()) is None
    assert paper_run_in(tmp_path, "--only", "mnist", "--tweet-clusters", "50mpaths2", "--dry-run") == 2
    assert "--tweet-clusters: mnist have no tweets" in capsys.readouterr().err


def test_fused_adam_is_named_by_the_record(tmp_path, table, monkeypatch, capsys):
    monkeypatch.setattr(variants, "preset", lambda _: {"sharing": replace(SHARING, seeds=1)})
    arguments = ["--only", "sharing", "--fused-optimizer"]
    assert paper_run_in(tmp_path, *arguments) == 0
    made = [record.config["model"]["init_args"]["fused_optimizer"] for record in read_records(tmp_path)]
    assert made == [True, True]
    assert paper_run_in(tmp_path, *arguments[:2]) == 2
    assert "model.init_args.fused_optimizer: True in the record, None now" in capsys.readouterr().err


def test_noise_by_key_is_named_by_the_record(tmp_path, table, monkeypatch, capsys):
    monkeypatch.setattr(variants, "preset", lambda _: {"sharing": replace(SHARING, seeds=1)})
    arguments = ["--only", "sharing", "--noise", "keys"]
    assert paper_run_in(tmp_path, *arguments) == 0
    records = read_records(tmp_path)
    assert {record.config["model"]["init_args"]["noise"] for record in records} == {"keys"}
    assert {record.config["data"]["init_args"]["order"] for record in records} == {"seed"}
    assert "random numbers by key (--noise keys)" in labels_of(records)
    capsys.readouterr()
    assert paper_run_in(tmp_path, "--only", "sharing") == 2
    assert "model.init_args.noise: 'keys' in the record, None now" in capsys.readouterr().err


def test_noise_by_key_is_for_the_experiments_that_can_have_it(tmp_path, capsys):
    table = own_experiments("full", ProtocolVariant(noise="keys"))
    ordered = {name for name, row in table.items() if row.data_args.get("order") == "seed"}
    assert table.keys() - ordered == {"cifar10_search", "cifar10", "cifar100"}
    assert ordered - {name for name, row in table.items() if row.task_args.get("noise") == "keys"} == {"autoencoder"}
    assert not any("order" in row.data_args for row in preset("full").values())
    for name in ordered:  # the classes take what they are given
        build_data({"class_path": table[name].data, "init_args": table[name].data_args}, None)
        build({"class_path": table[name].task, "init_args": table[name].task_args})
    assert paper_run_in(tmp_path, "--preset", "full", "--only", "cifar10", "--noise", "keys", "--dry-run") == 2
    assert "cifar10_search, cifar10 draw random numbers that have no keys" in capsys.readouterr().err


def test_fused_adam_is_for_the_experiments_that_have_torch_s(tmp_path, capsys):
    table = own_experiments("full", ProtocolVariant("50mpaths2", fused_optimizer=True))
    assert {name for name, row in table.items() if not row.task_args.get("fused_optimizer")} == {
        "cifar10_search",
        "cifar10",
        "cifar100",
    }
    assert table["tweets"].task_args == {"keep": 0.8, "fused_optimizer": True}
    assert table["tweets"].data_args["clusters"] == "50mpaths2"
    for row in table.values():  # every task takes the argument
        import_class(row.task)(**row.task_args)
    assert paper_run_in(tmp_path, "--preset", "full", "--only", "cifar10", "--fused-optimizer", "--dry-run") == 2
    assert "cifar10_search, cifar10 have no optimizer with a fused kernel" in capsys.readouterr().err


def test_fewer_epochs_are_named_by_the_record(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("gelu_paper.cli.running.WorkerPool", Pool)
    monkeypatch.setattr(variants, "preset", lambda _: {"sharing": replace(SHARING, seeds=1, epochs=2)})
    assert paper_run_in(tmp_path, "--only", "sharing", "--epochs", "1") == 0
    assert {record.config["trainer"]["max_epochs"] for record in read_records(tmp_path)} == {1}
    assert {max(record.curves["train_loss"].epoch) for record in read_records(tmp_path)} == {1}
    capsys.readouterr()
    monkeypatch.setattr("gelu_paper.planning.experiments_of", variants.preset)
    assert paper_run_in(tmp_path, "--only", "sharing") == 2
    assert "trainer.max_epochs: 1 in the record, 2 now" in capsys.readouterr().err


def test_missing_data(tmp_path, table, capsys):
    table(MISSING, replace(SHARING, seeds=1))
    arguments = ["--data-root", str(tmp_path / "no data")]
    assert paper_run_in(tmp_path, *arguments) == 1
    captured = capsys.readouterr()
    assert "data of missing: 4 not made (missing): MNIST is not in" in captured.err
    assert captured.err.count("\n") == 1
    assert "2 made" in captured.out
    assert "4 not made" in captured.out
    assert paper_run_in(tmp_path, *arguments, "--skip-missing") == 0


@pytest.mark.parametrize(("kind", "failed"), [("missing", False), ("no rate", True), ("error", True), ("lost", True)])
def test_what_skip_missing_lets_pass(kind, failed):
    """A search that diverged has found no rate, and no data are missing."""
    tally = Tally(failures=[(Preparation("data of digits", {}), Failure(kind, "why"), 2)])
    assert paper_run._has_failed(tally, skip_missing=True) == failed
    assert paper_run._has_failed(tally, skip_missing=False)


def test_data_that_two_experiments_miss_are_told_once(tmp_path, table, capsys):
    other = replace(MISSING, name="missing_too", data_args={**MISSING.data_args, "batch_size": 7})
    table(MISSING, other)
    assert paper_run_in(tmp_path, "--data-root", str(tmp_path / "no data")) == 1
    error = capsys.readouterr().err
    assert "data of missing, data of missing_too: 8 not made (missing): MNIST is not in" in error
    assert error.count("MNIST is not in") == 1


def test_failed_runs(tmp_path, table, capsys):
    table(replace(SHARING, seeds=1, arms={"bad": Arm("glu"), "relu": Arm("relu", settings={"keep": (1.0,)})}))
    assert paper_run_in(tmp_path, "--skip-missing") == 1
    captured = capsys.readouterr()
    both = "sharing/bad/keep=1/lr=0.01/seed=0, sharing/bad/keep=0.5/lr=0.01/seed=0"
    assert f"{both}: 2 not made (error): activation='glu' turns shape" in captured.err
    assert len(read_records(tmp_path)) == 1


def test_ctrl_c(tmp_path, table, capsys, monkeypatch):
    monkeypatch.setattr(Pool, "stop_after", 2)
    assert paper_run_in(tmp_path, "--replicas", "off") == 128 + signal.SIGINT
    assert "stopped; finished runs are in" in capsys.readouterr().err
    made = len(read_records(tmp_path))
    assert 2 <= made < 6
    monkeypatch.setattr(Pool, "stop_after", None)
    assert paper_run_in(tmp_path) == 0
    assert len(read_records(tmp_path)) == 6


def test_shards_are_made_by_themselves_and_merged(tmp_path, table, capsys):
    for index in (2, 1):
        assert paper_run_in(tmp_path, "--shard", f"{index}/2") == 0
        text = capsys.readouterr().out
        assert f"results in {tmp_path / f'shard-{index}-of-2'}" in text
        assert f"next: lit-gelu paper merge {tmp_path}/shard-*-of-2 --results {tmp_path}, after the last shard" in text
    folders = [str(tmp_path / f"shard-{index}-of-2") for index in (1, 2)]
    first, second = ({record.key for record in read_records(folder)} for folder in folders)
    assert (len(first | second), first & second) == (6, set())
    assert not (tmp_path / "runs.jsonl").exists()

    assert main(["paper", "merge", *folders, "--results", str(tmp_path)]) == 0
    assert {record.key for record in read_records(tmp_path)} == first | second
    capsys.readouterr()
    assert paper_run_in(tmp_path) == 0
    assert "6 runs were finished before, 0 made" in capsys.readouterr().out
    assert paper_run_in(tmp_path, "--shard", "1/1", "--dry-run") == 0  # of another number: nothing is made again
    assert "finished before: 6; to be made: 0" in capsys.readouterr().out


def test_seeds_that_some_of_the_experiments_have(tmp_path, table, capsys):
    table(replace(DIGITS, seeds=3), replace(SHARING, seeds=1))
    assert paper_run_in(tmp_path, "--seeds", "0", "2", "--dry-run") == 0
    assert "digits: 8 to be made, 0 identical\nsharing: 1 to be made, 1 identical" in capsys.readouterr().out
    for arguments, accepted in ([], "0 to 2"), (["--only", "sharing"], "0"):
        assert paper_run_in(tmp_path, "--seeds", "0", "3", *arguments, "--dry-run") == 2
        assert f"--seeds 0 3 given; accepted: {accepted}, the seeds of " in capsys.readouterr().err
    table(replace(DIGITS, seeds=3), replace(SHARING, seeds=5))  # which has no run of this arm
    assert paper_run_in(tmp_path, "--seeds", "0", "3", "--arms", "gelu", "--dry-run") == 2
    assert "--seeds 0 3 given; accepted: 0 to 2, the seeds of digits." in capsys.readouterr().err


def test_a_seed_that_is_given_twice_is_made_once(tmp_path, table, capsys):
    said = []
    for seeds in (["0"], ["0", "0"]):
        assert paper_run_in(tmp_path, "--seeds", *seeds, "--dry-run") == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


def test_a_dry_run_of_a_shard(tmp_path, table, capsys):
    table(replace(DIGITS, seeds=1), replace(SHARING, seeds=1), SEARCH, FINAL)
    assert paper_run_in(tmp_path, "--shard", "1/3", "--dry-run") == 0
    text = capsys.readouterr().out
    assert text.endswith("final: 2, their learning rates from search\nfinished before: 0; to be made: 3\n")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def two_gpus(monkeypatch):
    """Have torch count two GPUs; return the options that the worker processes would get."""
    given = []

    def fail(pool, job):
        given.append(pool.options)
        return Failure("error", "nothing runs on these")

    monkeypatch.setattr("gelu_paper.cli.accelerators._may_have_gpu", lambda: True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr(Pool, "answer", fail)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    return given


def test_devices_are_handed_to_the_processes(tmp_path, table, two_gpus, capsys):
    assert paper_run_in(tmp_path, "--devices", "all") == 1
    assert {(options.accelerator, options.gpus) for options in two_gpus} == {("cuda", ("4", "6"))}
    assert "2 at a time on cuda all, each by itself; results" in capsys.readouterr().out
    paper_run_in(tmp_path, "--devices", "1", "--workers", "3", "--accelerator", "gpu")
    assert two_gpus[-1].gpus == ("6",)
    assert "3 at a time on cuda 1, each by itself; results" in capsys.readouterr().out
    paper_run_in(tmp_path)
    assert two_gpus[-1].gpus == ()
    assert "1 at a time on cuda, each by itself; results" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["2"], "--devices 2 given; accepted: all, or some of 0 1"),
        (["0", "--accelerator", "cpu"], "--devices is for GPUs, and --accelerator is cpu"),
    ],
)
def test_devices_that_do_not_fit(tmp_path, table, two_gpus, capsys, arguments, message):
    assert paper_run_in(tmp_path / "none", "--devices", *arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_devices_without_a_gpu(tmp_path, table, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert paper_run_in(tmp_path / "none", "--devices", "0") == 2
    assert "--devices 0 given, but torch sees no GPU here" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_a_folder_in_use(tmp_path, table, capsys):
    with RecordStore(tmp_path):
        assert paper_run_in(tmp_path) == 2
    assert "Another run is writing" in capsys.readouterr().err


def test_another_configuration(tmp_path, table, capsys):
    assert paper_run_in(tmp_path, "--only", "sharing") == 0
    assert paper_run_in(tmp_path, "--only", "sharing", "--precision", "64-true") == 2
    assert "trainer.precision: '32-true' in the record, '64-true' now" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "digit"], "Did you mean 'digits'?"),
        (["--arms", "elu"], "Accepted: gelu, relu"),
        (["--seeds", "7"], "--seeds 7 given; accepted: 0, the seeds of digits, sharing"),
        (["--seeds", "0", "-1"], "--seeds 0 -1 given; accepted: 0, the"),
        (["--workers", "0"], "integers of at least 1"),
        (["--shard", "3/2"], "Shard 3/2 given; accepted: 1/2 to 2/2"),
        (["--precision", "8"], "8"),
        (["--replicas", "many"], "--replicas 'many' given; accepted: auto, off, or how many"),
        (["--accelerator", "cdua"], "invalid choice: 'cdua'. Give auto, cpu, cuda, gpu or mps. Did you mean cuda?"),
        (["--accelerator", "mps"], "--accelerator mps given, but torch sees none here"),
    ],
)
def test_mistakes(tmp_path, table, capsys, monkeypatch, arguments, message):
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    assert paper_run_in(tmp_path / "none", *arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_workers_are_the_cores(monkeypatch):
    assert paper_run.cores() >= 1
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    assert paper_run.cores() == 3


@pytest.mark.full
@pytest.mark.realdata
def test_mnist_in_processes(tmp_path):
    """The real thing: a run of the short preset, in a worker process."""
    arguments = ["--only", "mnist", "--arms", "gelu", "--seeds", "0", "--workers", "2"]
    assert paper_run_in(tmp_path, *arguments) == 0
    records = {record.setting["keep"]: record for record in read_records(tmp_path)}
    assert records[1.0].result.last_test_error < 0.05
    assert records[1.0].robustness.error[-1] > 0.5
    assert records[0.5].robustness is None
    assert json.loads(records[0.5].to_json())["config"]["data"]["init_args"] == {"batch_size": 128}
