"""What a run leaves behind, of any content: tables of values, event files, hyper-parameters, checkpoints."""

from unittest import mock

import torch
from fuzzing import damaged, fuzzed, plain, words
from hypothesis import strategies as st

from lit_gelu.cli.report import run_of
from lit_gelu.report import judged, page
from lit_gelu.report.sources import read_event_files, read_metrics_csv

TABLE = b"epoch,step,train_loss,curvature/net.1/share_dead\n0,0,2.5,0.1\n0,1,nan,\n1,2,inf,1\n"
YAML = b"activation: relu\nactivation_swap/step_3/net.1: relu -> gelu\nwidths: [1, 2]\n"
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


def show(path):
    with mock.patch("lit_gelu.report.sources.environment", dict):  # which asks git
        page(judged(run_of(path)))


def read_table(content, folder):
    (folder / "metrics.csv").write_bytes(content)
    read_metrics_csv(folder / "metrics.csv")
    show(folder)


def read_settings(content, folder):
    (folder / "metrics.csv").write_bytes(TABLE)
    (folder / "hparams.yaml").write_bytes(content)
    show(folder)


def read_events(content, folder):
    (folder / "events.out.tfevents.1").write_bytes(content)
    read_event_files(folder)


def read_kept(found, folder):
    try:
        torch.save({"state_dict": {}, **found}, folder / "last.ckpt")
    except RecursionError:  # what torch itself cannot write is in no file
        return
    show(folder / "last.ckpt")


yaml = words.map(lambda text: text.encode("utf-8", "surrogatepass")) | damaged(YAML)
test_tables = fuzzed(st.binary(max_size=60) | damaged(TABLE), read_table)
test_settings = fuzzed(yaml, read_settings)
test_event_files = fuzzed(st.binary(max_size=60), read_events)
test_checkpoints_of_any_content = fuzzed(st.dictionaries(keys, values, max_size=4), read_kept)
