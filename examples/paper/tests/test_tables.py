"""What tables show of numbers, and what they put beside them."""

import csv
import io
import math
import statistics

import pytest

from gelu_paper.tables import rounded, tables, to_csv
from lit_gelu.errors import ArgumentError, DataError


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [(0.125, 2, "0.13"), (-0.125, 2, "-0.12"), (2.675, 2, "2.68"), (-0.001, 2, "0.00"), (math.inf, 2, "diverged")],
)
def test_numbers_are_rounded_to_the_nearest_and_ties_upwards(value, decimals, text):
    assert rounded(value, decimals) == text


def rows_of(table):
    """Return a Markdown table's rows by column."""
    lines = [line.strip("| ").split(" | ") for line in table.to_markdown().splitlines() if line.startswith("|")]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def test_a_row_has_the_median_and_the_spread_of_its_runs(record_of):
    errors = [0.1234, 0.11, 0.2]
    runs = [record_of(seed, val_error=[0.1], test_error=[error]) for seed, error in enumerate(errors)]
    (table,) = tables(runs, ["mnist"])
    (row,) = rows_of(table)
    assert (row["median"], row["min"], row["max"], row["runs"]) == ("12.34", "11.00", "20.00", "3 of 5")
    assert row["deviation"] == f"{100 * statistics.stdev(errors):.2f}"
    assert (row["published"], row["difference"]) == ("-", "-")


def test_a_published_number_stands_as_it_was_printed(record_of):
    runs = [record_of(seed, experiment="timit", keep=None, val_error=[0.3], test_error=[0.2964]) for seed in range(5)]
    (table,) = tables(runs)
    (row,) = rows_of(table)
    assert (row["median"], row["published"], row["difference"]) == ("29.64", "29.3", "+0.34")
    assert any("section 3.4" in note for note in table.notes)


def test_a_published_point_stands_in_the_row_of_the_median_at_its_epoch(record_of):
    runs = [record_of(seed, train_loss=[1, 1, 1, 1, 0.06 + seed / 100], val_error=[0.1] * 5) for seed in range(3)]
    (table,) = tables(runs, ["mnist"], "points")
    (row,) = rows_of(table)  # the paper's other points are of epochs that these runs have not
    assert (row["epoch"], row["measured"], row["median"], row["published"]) == ("5", "train loss", "0.0700", "0.065")
    assert row["difference"] == "+0.0050"


def test_noise_is_shown_at_integer_levels(record_of):
    runs = [record_of(seed, val_error=[0.1], test_error=[0.1], noise=[0.1, 0.3 + seed / 10]) for seed in range(3)]
    (table,) = tables(runs, ["mnist"], "noise")
    assert [(row["measured"], row["median"]) for row in rows_of(table)] == [("test error under noise 1, %", "40.00")]


def test_a_run_that_diverged_is_counted_and_has_no_deviation(record_of):
    runs = [record_of(seed, val_error=[0.1], test_error=[0.1], status="diverged") for seed in range(5)]
    (row,) = rows_of(tables(runs)[0])
    assert (row["runs"], row["median"], row["deviation"]) == ("5, 5 diverged", "diverged", "-")


def test_a_brief_table_says_once_what_all_rows_have_in_common(record_of):
    runs = [record_of(seed, arm, val_error=[0.1], test_error=[0.1]) for arm in ("gelu", "relu") for seed in range(2)]
    text = tables(runs, ["mnist"])[0].to_markdown(brief=True)
    assert text.startswith("All rows: keep 1; test error, %; learning rate 0.001; runs 2 of 5.\n\n")
    assert "| arm | median | min | max | deviation |\n" in text


def test_csv_has_numbers_as_they_were_computed(record_of):
    runs = [record_of(seed, val_error=[0.1], test_error=[error]) for seed, error in enumerate((1 / 3, 2 / 3))]
    (row,) = csv.DictReader(io.StringIO(to_csv(tables(runs))))
    assert (float(row["median"]), float(row["min"])) == (statistics.median((1 / 3, 2 / 3)), 1 / 3)
    assert (row["experiment"], row["published"]) == ("mnist", "")


def test_what_is_not_the_protocol_is_a_label(record_of):
    run = record_of(val_error=[0.1], test_error=[0.1])
    arguments = {"clusters": "50mpaths2", "train_samples": 100}
    run.config["data"] |= {"class_path": "lit_gelu.data.TweetData", "init_args": arguments}
    run.config["trainer"] |= {"max_epochs": 3, "precision": "bf16-mixed"}
    labels = " ".join(tables([run])[0].labels)
    for text in ("substitute data", "first 100 training samples", "3 of 50 epochs", "bf16-mixed"):
        assert text in labels
    assert f"**{tables([run])[0].labels[0]}**" in tables([run])[0].to_markdown()


def test_the_kept_runs_are_those_of_the_full_protocol_but_for_substitutes_and_epochs(kept):
    labels = {label for table in tables(kept) for label in table.labels}
    assert labels == {
        "substitute data: bit paths of word clusters, not the paper's word vectors",
        "ended after 60 of 250 epochs",
    }


def test_an_unknown_kind_and_runs_without_a_result_are_refused(record_of):
    assert tables([]) == []
    with pytest.raises(ArgumentError):
        tables([record_of(val_error=[0.1], test_error=[0.1])], kind="curves")
    with pytest.raises(DataError):
        tables([record_of(train_loss=[0.1])])
