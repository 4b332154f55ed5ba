"""`compare`: runs that are there, in tables and log folders; what is decided, and what is refused."""

import csv
import json
import lzma
import math
from pathlib import Path

import numpy as np
import pytest
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from scipy import stats

from lit_gelu.choose import compare
from lit_gelu.cli.main import main
from lit_gelu.errors import ArgumentError, DataError

PAPER = Path(__file__).resolve().parents[2] / "docs" / "data" / "paper_runs.jsonl.xz"
ERRORS = {"gelu": [2.1, 2.0, 2.2, 1.9, 2.0], "relu": [2.5, 2.3, 2.6, 2.4, 2.3]}


def table(errors=ERRORS, **more):
    return [
        {"run": f"{group}-{seed}", "group": group, "seed": seed, "error": value, **more}
        for group, values in errors.items()
        for seed, value in enumerate(values)
    ]


def rows_of_the_paper(keep, value):
    runs = [json.loads(line) for line in lzma.decompress(PAPER.read_bytes()).splitlines()]
    return [
        {"activation": run["arm"], "seed": run["seed"], "error": run["result"][value]}
        for run in runs
        if (run["experiment"], run["setting"], run["learning_rate"]) == ("mnist", {"keep": keep}, 0.001)
    ]


@pytest.mark.parametrize(
    ("keep", "value", "decided"),
    [
        # docs/paper.md: "Without dropout, the ranges of all three overlap, in the training loss at the end and in the
        # test error: no difference." and "With dropout, the training loss ends lowest with GELU, then ELU, then ReLU".
        (1.0, "test_error_at_best_val", []),
        (1.0, "last_train_loss", []),
        (0.5, "last_train_loss", [("gelu", "elu"), ("gelu", "relu"), ("elu", "relu")]),
    ],
)
def test_the_verdicts_of_the_papers_runs(keep, value, decided):
    choice = compare(rows_of_the_paper(keep, value), metric="error", group="activation")
    assert len(choice.seeds) == 5
    for of, to in (("gelu", "elu"), ("gelu", "relu"), ("elu", "relu")):
        difference = choice.difference(of, to)
        assert difference.is_decided == ((of, to) in decided)
        assert not difference.is_decided or difference.mean < 0


@pytest.mark.parametrize("paired", [True, False])
def test_one_activation_under_two_names_is_hardly_ever_told_apart(paired):
    values = np.array([row["error"] for row in rows_of_the_paper(1.0, "test_error_at_best_val")])
    generator, alarms = np.random.default_rng(0), 0
    for _ in range(100):
        errors = {name: generator.choice(values, 7).tolist() for name in ("a", "b")}
        rows = table(errors)
        for row in rows:
            if not paired:
                del row["seed"]
        alarms += any(d.is_decided for d in compare(rows, metric="error").differences)
    assert alarms <= 5 + 3 * math.sqrt(100 * 0.05 * 0.95)


def test_tests_are_those_of_scipy_paired_or_not():
    gelu, relu = ERRORS.values()
    paired = compare(table(), metric="error").difference("gelu", "relu")
    assert paired.p == pytest.approx(stats.ttest_rel(gelu, relu).pvalue)
    rows = [row for row in table({**ERRORS, "relu": [*relu, 2.4]}) if row["run"] != "gelu-2"]
    unpaired = compare(rows, metric="error")
    assert unpaired.trained == "Not paired: gelu has no run with seed 2 and 5."
    assert unpaired.verdict[0].startswith("Nothing is decided: 4 seeds")
    rows = table({**ERRORS, "relu": [*relu, 2.4]})
    welch = stats.ttest_ind(gelu, [*relu, 2.4], equal_var=False)
    choice = compare(rows, metric="error")
    difference = choice.difference("gelu", "relu")
    assert difference.p == pytest.approx(welch.pvalue)
    assert (difference.low, difference.high) == pytest.approx(tuple(welch.confidence_interval()))
    assert choice.verdict[-1] == "p is that of Welch's test of error over 5 runs of each, or more."


def test_an_export_of_wandb(tmp_path, capsys):
    names = {"run": "Name", "group": "model.activation", "seed": "Seed", "error": "val/error"}
    rows = [{names[key]: value for key, value in row.items()} | {"State": "finished"} for row in table()]
    path = tmp_path / "wandb_export.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    assert main(["compare", str(path), "--group", "activation", "--metric", "val/error", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["differences"][0]["p"] == compare(table(), metric="error").differences[0].p
    assert printed["best"]["label"] == "gelu"


class Frame:
    """What is used of a DataFrame."""

    def to_dict(self, orient):
        assert orient == "records"
        return table()


def test_a_data_frame():
    assert compare(Frame(), metric="error").verdict == compare(table(), metric="error").verdict


def log(kind, folder, activation, seed, value, steps=3):
    logger = kind(folder, name=f"{activation}-{seed}")
    logger.log_hyperparams({"model": {"activation": activation, "betas": (0.9, 0.99), "rate": 0.1}, "seed": seed})
    for step in range(steps):
        logger.log_metrics({"val_error": value + 0.1 * (steps - 1 - step)}, step=step)
    logger.finalize("success")
    logger.save()


@pytest.mark.parametrize("kind", [CSVLogger, TensorBoardLogger])
def test_log_folders(kind, tmp_path):
    for activation, values in ERRORS.items():
        for seed, value in enumerate(values):
            log(kind, tmp_path, activation, seed, value)
    choice = compare(tmp_path, metric="val_error", group="activation")
    relu = next(candidate for candidate in choice.candidates if candidate.label == "relu")
    assert relu.values(choice.metric) == pytest.approx(ERRORS["relu"])
    assert choice.test == "paired"
    assert choice.notes[0].startswith("All runs have the same model.betas, model.rate and last step.")
    log(kind, tmp_path, "relu", 5, 2.4, steps=2)
    with pytest.raises(ArgumentError, match="differ in last step too: 2, 1"):
        compare([tmp_path], metric="val_error", group="activation")
    choice = compare([tmp_path], metric="val_error", group="activation", ignore=["last step"])
    assert choice.trained == "Not paired: gelu has no run with seed 5."
    assert "over 11 runs" in repr(choice)
    path = tmp_path / "relu-5" / "version_0" / "hparams.yaml"
    for other in ("optimizer: {name: sgd}", "widths: [8, 8, 8, 8, 8, 8, 9]"):  # a name of more than the run; a long one
        for file in tmp_path.rglob("hparams.yaml"):
            file.write_text(file.read_text() + other.replace("sgd", "adam").replace("9", "8") + "\n")
        path.write_text(path.read_text().replace("adam", "sgd").replace("8]", "9]"))
        with pytest.raises(ArgumentError, match=r"differ in (optimizer.name|widths) too"):
            compare([tmp_path], metric="val_error", group="activation", ignore=["last step"])
        path.write_text(path.read_text().replace("sgd", "adam").replace("9]", "8]"))
    (tmp_path / "relu-5" / "version_0" / "hparams.yaml").write_text("seed: [")
    with pytest.raises(DataError, match="cannot be read as settings"):
        compare([tmp_path], metric="val_error", group="activation")


def spoiled(place, **changes):
    rows = table()
    rows[place] |= changes
    return rows


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([], "no runs"),
        (table({"gelu": [1.0, 2.0]}), "one group alone, gelu"),
        (table({"gelu": [1.0, 2.0], "relu": [1.0]}), "one run alone of relu"),
        (spoiled(0, seed=1), "gelu has several runs with seed 1"),
        (spoiled(0, error="2.1 %"), "error of gelu-0 is '2.1 %'"),
        (spoiled(0, error=0.021), "from 0.021 to 2.6: some values may be shares"),
        (spoiled(0, group=""), "gelu-0 has no group"),
        (spoiled(0, group=math.nan), "gelu-0 has no group"),
        (spoiled(0, max_epochs=5), "differ in max_epochs too: 5, None"),
        ([{"activation": "gelu", "error": 2.0}], "no column or setting 'group'. There are activation, error"),
    ],
)
def test_what_cannot_be_compared_is_refused(runs, message):
    with pytest.raises(ArgumentError) as caught:
        compare(runs, metric="error")
    assert message in str(caught.value)


def test_runs_without_a_seed_are_not_paired():
    for missing in ("", math.nan, None, "None", "True"):
        choice = compare(spoiled(3, seed=missing), metric="error")
        assert (choice.test, choice.trained) == ("unpaired", "Not paired: there is no seed of gelu-3.")
    numbered = compare([{**row, "group": int(row["group"] == "relu")} for row in table()], metric="error")
    assert [candidate.label for candidate in numbered.candidates] == ["0", "1"]


def test_runs_without_a_number_leave_their_group_out():
    for value, sentence in ((math.nan, "gelu diverged with seed 0"), ("", "gelu logged no error with seed 0")):
        choice = compare(spoiled(0, error=value), metric="error")
        assert choice.differences == []
        assert any(line.startswith(sentence) for line in choice.verdict)


def test_paths_without_runs(tmp_path, capsys):
    (tmp_path / "empty.csv").write_text("group,value\n")
    (tmp_path / "text.csv").write_bytes(b"\xff\xfe\x00")
    for words in ([tmp_path / "nowhere"], [tmp_path / "empty.csv"], [tmp_path / "text.csv"]):
        assert main(["compare", *map(str, words), "--mode", "min"]) == 2
        assert capsys.readouterr().err.startswith("lit-gelu compare: ")
