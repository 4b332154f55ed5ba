"""What a run leaves behind, of any content: tables of values, event files, hyper-parameters, pages, checkpoints."""

import json
from unittest import mock

import torch
from fuzzing import damaged, fuzzed, plain, words
from hypothesis import strategies as st

from lit_gelu.cli.report.gathering import run_of_checkpoint, run_of_folder
from lit_gelu.report import ReportedRun, from_json, judged, page, to_json
from lit_gelu.report.logged_values import from_event_files, from_metrics_csv

PAGE = to_json(ReportedRun(title="a", source="b", made="c")).encode()
TABLE = b"epoch,step,train_loss,curvature/net.1/share_dead\n0,0,2.5,0.1\n0,1,nan,\n1,2,inf,1\n"
YAML = b"activation: relu\nactivation_swap/step_3/net.1: relu -> gelu\nwidths: [1, 2]\n"
names = st.sampled_from(["title", "steps", "curves", "swaps", "sites", "files", "configuration", "x"]) | st.text(
    max_size=5
)
entries = st.dictionaries(names, plain, max_size=4)
keys = st.sampled_from([
    "lit_gelu_activations",
    "lit_gelu_activation_swaps",
    "optimizer_states",
    "callbacks",
    "hyper_parameters",
    "global_step",
    "epoch",
])
values = plain | st.sampled_from([
    [{"param_groups": [{"lr": "x", "betas": [None]}]}],
    {"a": {"heat_maps": {"statistics": ["curvature"], "columns": [(2, {"net.1": [0.5]}), (-1, {}), 3]}}},
    [{"state_key": "a", "record": {"epoch": 1, "step": 2, "order": 0, "sites": {"net.1": {"old": "a", "new": "b"}}}}],
])


def show(gather, path):
    with mock.patch("lit_gelu.cli.report.gathering.environment", dict):  # which asks git
        page(judged(gather(path)))


def read_page(found, folder):
    text = found if isinstance(found, bytes) else json.dumps({**json.loads(PAGE), **found})
    page(judged(from_json(text)))


def read_table(content, folder):
    (folder / "metrics.csv").write_bytes(content)
    from_metrics_csv(folder / "metrics.csv")
    show(run_of_folder, folder)


def read_settings(content, folder):
    (folder / "metrics.csv").write_bytes(TABLE)
    (folder / "hparams.yaml").write_bytes(content)
    show(run_of_folder, folder)


def read_events(content, folder):
    (folder / "events.out.tfevents.1").write_bytes(content)
    from_event_files(folder)


def read_kept(found, folder):
    try:
        torch.save({"state_dict": {}, **found}, folder / "last.ckpt")
    except RecursionError:  # what torch itself cannot write is in no file
        return
    show(run_of_checkpoint, folder / "last.ckpt")


def printable(found):
    """Whether JSON has words for a value."""
    try:
        json.dumps(found)
    except (ValueError, RecursionError):
        return False
    return True


yaml = words.map(lambda text: text.encode("utf-8", "surrogatepass")) | damaged(YAML)
test_data_of_pages = fuzzed(entries.filter(printable), read_page)
test_pages_that_are_damaged = fuzzed(damaged(PAGE), read_page)
test_tables = fuzzed(st.binary(max_size=60) | damaged(TABLE), read_table)
test_settings = fuzzed(yaml, read_settings)
test_event_files = fuzzed(st.binary(max_size=60), read_events)
test_checkpoints_of_any_content = fuzzed(st.dictionaries(keys, values, max_size=4), read_kept)
