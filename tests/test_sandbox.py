"""What runs on the side leaves no trace, also where passes of several threads overlap."""

import sys

import pytest
import torch
from torch import nn

from lit_gelu.sandbox import as_written, evaluation_mode, in_side_pass, isolated_random_state, side_pass


def test_a_program_without_numpys_generators_is_not_made_to_load_them(monkeypatch):
    monkeypatch.delitem(sys.modules, "numpy.random")
    seed_of_torch = torch.initial_seed()
    with isolated_random_state(nn.Identity()):
        torch.manual_seed(seed_of_torch + 1)
    assert "numpy.random" not in sys.modules
    assert torch.initial_seed() == seed_of_torch


def test_modes_come_back_after_a_failure():
    model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
    with pytest.raises(InterruptedError), evaluation_mode(model):
        raise InterruptedError
    assert [module.training for module in model.modules()] == [True, True, False]


def test_side_passes_of_several_threads_end_in_any_order():
    first, second = side_pass(), side_pass()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert in_side_pass()
    second.__exit__(None, None, None)
    assert not in_side_pass()


def test_compiled_code_runs_again_when_the_last_of_several_threads_is_done():
    """torch's stance belongs to the process, and passes do not end in the order in which they began."""
    runs = []

    def backend(graph, inputs):
        return lambda *arguments: runs.append(1) or graph.forward(*arguments)

    compiled = torch.compile(torch.sin, backend=backend)

    def compiles():
        before = len(runs)
        compiled(torch.ones(2))
        return len(runs) > before

    assert compiles()
    first, second = as_written(), as_written()
    first.__enter__()
    second.__enter__()
    assert not compiles()
    first.__exit__(None, None, None)
    assert not compiles()
    second.__exit__(None, None, None)
    assert compiles()
