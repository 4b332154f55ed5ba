"""Checkpoints of plain data of any form, and damaged ones."""

import io

import torch
from fuzzing import damaged, fuzzed, plain, recursion_limit, scalars, spec_texts
from hypothesis import strategies as st
from torch import nn

from lit_gelu.callbacks import ActivationSwap
from lit_gelu.callbacks.checkpoint_file import read_checkpoint, require_no_imports
from lit_gelu.callbacks.swap.history import SwapRecord
from lit_gelu.callbacks.swap.run import _read_records
from lit_gelu.cli.loading import checked_arguments, load_model
from lit_gelu.surgery.activation_record import restore_activations
from lit_gelu.tasks import MNISTClassifier

OWN = "lit_gelu.tasks.MNISTClassifier"
GOOD = {
    "state_dict": MNISTClassifier("gelu", hidden_layers=1).state_dict(),
    "hyper_parameters": {"activation": "gelu", "hidden_layers": 1, "keep": 1.0},
    "pytorch-lightning_version": "2.6.0",
    "lit_gelu_activations": {"hidden.0.activation": "gelu"},
    "epoch": 0,
    "global_step": 0,
}


def content(checkpoint):
    with io.BytesIO() as file:
        torch.save(checkpoint, file)
        return file.getvalue()


# Not of hidden_layers, which may ask for any amount of memory honestly.
arguments = st.fixed_dictionaries(
    {"hidden_layers": st.just(1) | spec_texts},
    optional={
        "activation": spec_texts | plain,
        "keep": scalars,
        "learning_rate": scalars,
        "momentum": plain,
        "registry": plain,
        "loss": plain,
        "_class_path": st.just(OWN) | spec_texts | plain,
        "_instantiator": st.just("lightning.pytorch.cli.instantiate_module") | spec_texts | plain,
    },
)
sites = st.sampled_from(["1", "hidden.0.activation", "class:turtle.Turtle", "activation:this.s", "0", "", "a:gelu#0"])
records = plain | st.dictionaries(sites | st.text(max_size=4), spec_texts | plain, max_size=3)
entries = st.sampled_from([*GOOD, "hparams", "module_arguments", "hparams_name", "hparams_type", "loops", "callbacks"])
swaps = plain | st.fixed_dictionaries({
    "epoch": st.integers(0, 3) | plain,
    "step": st.integers(0, 3) | plain,
    "order": st.integers(0, 3) | plain,
    "sites": st.dictionaries(sites, st.fixed_dictionaries({"old": spec_texts, "new": spec_texts}) | plain) | plain,
})


def saved(checkpoint, folder):
    """Write a checkpoint, however deep it is nested."""
    with recursion_limit(20_000):
        torch.save(checkpoint, folder / "bad.ckpt")
    return str(folder / "bad.ckpt")


def load(checkpoint, folder):
    load_model(saved(checkpoint, folder))


def load_with_arguments(found, folder):
    load({**GOOD, "hyper_parameters": found}, folder)


def load_with_entries(found, folder):
    load(GOOD | found, folder)


def arguments_of_fit(found, folder):
    checked_arguments(saved({**GOOD, "hyper_parameters": found}, folder), OWN, [])


def look_through(found, folder):
    require_no_imports(found, nn.Module, (), "bad.ckpt")


def restore(found, folder):
    restore_activations(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), found, input_sample=torch.zeros(1, 2))


def replay(found, folder):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    SwapRecord.from_dict(found).replay(model, None, torch.zeros(1, 2))


def read_swaps(found, folder):
    _read_records(found)
    _read_records([{"state_key": "ActivationSwap", "record": found}])


def load_state_of_a_swap(found, folder):
    ActivationSwap({"activation:relu": "gelu"}, at_epoch=1).load_state_dict({"applied": True, "record": found})
    ActivationSwap({"activation:relu": "gelu"}, at_epoch=1).load_state_dict(found)


def read_bytes(bad, folder):
    (folder / "bad.ckpt").write_bytes(bad)
    read_checkpoint(folder / "bad.ckpt")


test_hyper_parameters_of_any_form = fuzzed(arguments, load_with_arguments)
test_any_entry_of_any_form = fuzzed(st.dictionaries(entries, plain, max_size=3), load_with_entries)
test_arguments_that_ckpt_path_adds = fuzzed(arguments, arguments_of_fit)
test_arguments_that_are_looked_through = fuzzed(st.dictionaries(st.text(max_size=5), plain), look_through)
test_records_of_activations = fuzzed(records, restore)
test_records_of_swaps = fuzzed(swaps, replay)
test_lists_of_swaps = fuzzed(plain | swaps, read_swaps)
test_states_of_swaps = fuzzed(swaps, load_state_of_a_swap)
test_damaged_files = fuzzed(damaged(content(GOOD)), read_bytes)
