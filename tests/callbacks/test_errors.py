"""What several ranks refuse alike ends with one traceback, and an error of one rank alone is still seen."""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from child_processes import end_of, started

from lit_gelu.callbacks import (
    ActivationCurvatureMonitor,
    ActivationSwap,
    ExactResume,
    LossCurvatureMonitor,
    OnnxExport,
)
from lit_gelu.errors import UnsupportedRunError

# Each rank waits until the test has seen that the other one got so far: who ends early breaks its peer's connection.
SCRIPT = """
import sys
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from lit_gelu.callbacks import ActivationSwap
from lit_gelu.errors import LitGeluError

quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False, "enable_progress_bar": False}
swap = ActivationSwap({"activation:relu": "gelu"}, at_epoch=1)
trainer = Trainer(accelerator="cpu", strategy="ddp", devices=2, callbacks=[swap], **quiet)
try:
    trainer.fit(BoringModel())
except LitGeluError:
    sys.stdout.write("refused\\n")
    sys.stdout.flush()
    sys.stdin.read()
    raise
"""

CALLBACKS = {
    "swap": lambda: ActivationSwap({"*": "gelu"}, at_epoch=1),
    "activations": ActivationCurvatureMonitor,
    "loss": LossCurvatureMonitor,
    "export": OnnxExport,
    "resume": ExactResume,
}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.full
def test_two_ranks_refuse_with_one_traceback_and_the_same_exit_code(tmp_path):
    script = tmp_path / "fit.py"
    script.write_text(SCRIPT)
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    place = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    with ExitStack() as stack:
        environments = [place | {"NODE_RANK": "0", "LOCAL_RANK": str(rank)} for rank in (0, 1)]
        command = [sys.executable, "-P", str(script)]
        ranks = [stack.enter_context(started(command, env=env, cwd=tmp_path, **pipes)) for env in environments]
        reached = [rank.stdout.readline() for rank in ranks]
        errors = [end_of(rank)[1] for rank in ranks]
    assert reached == ["refused\n"] * 2, errors
    assert [rank.returncode for rank in ranks] == [1, 1]
    assert [error.count("Traceback") for error in errors] == [1, 0]
    name = "lit_gelu.surgery.errors.SwapError: "
    (explained,), (named,) = ([line for line in error.splitlines() if name in line] for error in errors)
    assert named == f"[rank1]: {name}{explained.partition(name)[2]}"


@pytest.fixture
def hook(monkeypatch):
    """Python's last word on errors, which keeps those that it is given."""

    def last_word(kind, error, trace):
        last_word.errors.append(error)

    last_word.errors = []
    monkeypatch.setattr(sys, "excepthook", last_word)
    return last_word


def meets(callback, error, rank):
    callback.on_exception(SimpleNamespace(global_rank=rank, world_size=2), None, error)


def ends_with(error):
    sys.excepthook(type(error), error, error.__traceback__)


@pytest.mark.parametrize("callback", CALLBACKS)
def test_on_a_later_rank_a_refusal_is_one_line_with_its_class_and_message(callback, hook, capsys):
    refusal = UnsupportedRunError("not with FSDP")
    meets(CALLBACKS[callback](), refusal, rank=3)
    ends_with(refusal)
    assert capsys.readouterr().err == "[rank3]: lit_gelu.callbacks.errors.UnsupportedRunError: not with FSDP\n"
    assert hook.errors == []


@pytest.mark.parametrize(("error", "rank"), [(UnsupportedRunError("no"), 0), (ValueError("a fault"), 1)])
def test_the_first_rank_and_errors_of_other_kinds_keep_their_tracebacks(error, rank, hook):
    meets(ExactResume(), error, rank)
    assert sys.excepthook is hook
    ends_with(error)
    assert hook.errors == [error]


def test_a_refusal_that_is_caught_leaves_later_errors_as_they_are(hook, capsys):
    for caught in (UnsupportedRunError("first"), UnsupportedRunError("second")):
        meets(ExactResume(), caught, rank=1)
    of_another_kind, of_the_same = KeyError("a fault"), UnsupportedRunError("outside of the Trainer")
    for error in (of_another_kind, of_the_same):
        ends_with(error)
    assert hook.errors == [of_another_kind, of_the_same]
    assert capsys.readouterr().err == ""
