"""Records are read as they were written, those of earlier versions too; what is damaged is refused."""

import json
import lzma
import math
from dataclasses import replace

import pytest
from paths import DOCS

from gelu_paper.cells import check_configuration, expand
from gelu_paper.experiments import EXPERIMENTS, variant
from gelu_paper.records import RunRecord, append_record, check_one_protocol, cut_unfinished_line, read_records
from lit_gelu.errors import ArgumentError, DataError


def test_a_record_is_read_as_it_was_written(record_of, tmp_path):
    records = [record_of(n, val_error=[0.5, math.inf], train_loss=[1, math.nan], noise=[0.1, 0.9]) for n in range(2)]
    for record in records:
        append_record(tmp_path, record)
    copies = read_records(tmp_path)
    assert [record.key for record in copies] == [record.key for record in records]
    assert copies[0].robustness == records[0].robustness
    assert copies[0].curves["val_error"].value[0] == 0.5
    assert math.isnan(copies[0].curves["val_error"].value[1])  # JSON has no infinity: no finite number is null
    assert replace(copies[1], curves={}) == replace(records[1], curves={})


def test_every_field_of_the_kept_records_is_read(kept):
    lines = lzma.decompress((DOCS / "data" / "paper_runs.jsonl.xz").read_bytes()).splitlines()
    assert len(kept) == len(lines) == 301
    for record, line in zip(kept, map(json.loads, lines), strict=True):
        assert json.loads(record.to_json()) == {name: line[name] for name in line if name != "result"} | {"schema": 3}


def test_the_kept_records_are_those_of_todays_cells(kept):
    (clusters,) = {run.config["data"]["init_args"]["clusters"] for run in kept if run.experiment == "tweets"}
    cells = {}
    for experiment in EXPERIMENTS.values():
        epochs = 60 if experiment.name == "autoencoder" else None
        cells |= {cell.key: cell for cell in expand(variant(experiment, clusters=clusters, epochs=epochs), "full")}
    for record in kept:
        check_configuration(cells[record.key], record)
        assert (cells[record.key].activation, cells[record.key].setting) == (record.activation, record.setting)
    with pytest.raises(ArgumentError):
        check_configuration(replace(cells[kept[0].key], config={"model": {}}), kept[0])


def test_a_line_that_a_kill_cut_off_is_no_run(record_of, tmp_path):
    append_record(tmp_path, record_of(0))
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write(record_of(1).to_json()[:50])
    assert [run.seed for run in read_records(tmp_path)] == [0]
    cut_unfinished_line(tmp_path)
    append_record(tmp_path, record_of(2))
    assert [run.seed for run in read_records(tmp_path)] == [0, 2]


DAMAGES = {
    "no JSON": lambda line: line[1:],
    "a list": lambda line: "[1]",
    "another schema": lambda line: line.replace('"schema": 3', '"schema": 4'),
    "no key": lambda line: line.replace('"key"', '"yek"'),
    "curves of two lengths": lambda line: line.replace("[1.0, 2.0]", "[1.0]"),
    "text in a curve": lambda line: line.replace("[1.0, 2.0]", '[1.0, "x"]'),
    "empty": lambda line: "",
    "twice": lambda line: f"{line}\n{line}",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused(damage, record_of, tmp_path):
    line = DAMAGES[damage](record_of(0, val_error=[0.5, 0.4]).to_json())
    (tmp_path / "runs.jsonl").write_text(line + "\n")
    with pytest.raises(DataError):
        read_records(tmp_path)


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(DataError):
        read_records(tmp_path)


def test_runs_of_two_protocols_have_no_median(record_of, kept):
    check_one_protocol(kept)
    one = record_of(0)
    others: list[RunRecord] = [
        replace(one, preset="quick"),
        replace(one, data={"corpus": "another"}),
        replace(one, config={**one.config, "trainer": {**one.config["trainer"], "max_epochs": 3}}),
    ]
    check_one_protocol([one, record_of(1, arm="relu", rate=1e-4, keep=0.5)])
    for other in others:
        with pytest.raises(DataError):
            check_one_protocol([one, other])
