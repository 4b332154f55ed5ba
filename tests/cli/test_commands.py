"""Parsers from signatures, outputs that replace nothing, modules of one's own."""

from collections.abc import Sequence
from typing import Literal

import pytest
from lightning.pytorch import LightningDataModule
from torch import nn, randn, zeros
from torch.utils.data import TensorDataset

from lit_gelu.cli import commands
from lit_gelu.cli.commands import run_command
from lit_gelu.cli.input_sample import evaluation_data, inputs_of_data

CALLS = []


def command(
    source: str,
    *,
    count: int = 3,
    rate: float | None = None,
    kind: Literal["one", "two"] = "one",
    names: Sequence[str] = (),
    check: bool = True,
    data_root: str | None = None,
    overwrite: bool = False,
    json: str | None = None,
) -> int:
    """Do something.

    in a shell:
      lit-gelu command a.ckpt

    Args:
        source: where it comes from
        count: how many
        rate: how fast
        kind: which
        names: of what
        check: whether to look
        data_root: a folder
        overwrite: whether to replace
        json: where to write
    """
    CALLS.append(locals())
    return 4


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(commands, "function_of", {"command": command}.__getitem__)
    CALLS.clear()


DEFAULTS = {
    "source": "a", "count": 3, "rate": None, "kind": "one", "names": [], "check": True, "data_root": None,
    "overwrite": False, "json": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("a", {}),
        ("a --count 5 --rate 1e-3 --kind two", {"count": 5, "rate": 0.001, "kind": "two"}),
        ("a --names x y --no-check --overwrite", {"names": ["x", "y"], "check": False, "overwrite": True}),
        ("a --data-root here", {"data_root": "here"}),
        ("a --data_root=here", {"data_root": "here"}),
        ("a --json", {"json": "-"}),
        ("a --json out.json", {"json": "out.json"}),
    ],
)
def test_words_become_arguments(words, options):
    assert run_command("command", words.split()) == 4
    (call,) = CALLS
    assert call == DEFAULTS | options


@pytest.mark.parametrize("words", ["", "a --count ten", "a --kind three", "a --cuont 3", "a b", "a --names"])
def test_a_mistake_is_said_in_the_commands_name_without_usage(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        run_command("command", words.split())
    error = capsys.readouterr().err
    assert error.startswith("lit-gelu command: ")
    assert error.endswith("See lit-gelu command --help.\n")
    assert not CALLS


@pytest.mark.filterwarnings("ignore:.*pin_memory")
def test_a_data_module_of_from_datasets_gives_its_inputs():
    x = randn(5, 4)
    data = LightningDataModule.from_datasets(TensorDataset(zeros(5, 4)), TensorDataset(x, x[:, 0]))
    assert inputs_of_data(data, nn.Linear(4, 2)).equal(x[:1])  # of its validation, in batches of 1
    assert evaluation_data(data) is data
    assert evaluation_data(LightningDataModule.from_datasets(TensorDataset(x))) is None
