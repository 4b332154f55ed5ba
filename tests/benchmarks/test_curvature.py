"""``benchmarks/curvature.py`` runs small: every part, no waits in our monitor, values that are ARPACK's."""

import re
import runpy
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def printed(monkeypatch, capsys):
    """Runs the script's parts on the bundled digits and returns what it prints."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delenv("LIT_GELU_DATA", raising=False)

    def run(*parts):
        threads = torch.get_num_threads()
        runpy.run_path(str(FOLDER / "curvature.py"))["main"](["--quick", "--only", *parts])
        torch.set_num_threads(threads)
        return capsys.readouterr().out

    return run


def rows_of(text, name):
    """The numbers of every line that begins with a name."""
    lines = [line.removeprefix(name) for line in text.splitlines() if line.startswith(name)]
    return [[float(word.rstrip("%")) for word in line.split()] for line in lines]


@pytest.mark.full
def test_monitors_of_activations(printed):
    text = printed("activations")
    for when in ("every step", "every 50 steps"):
        ours = rows_of(text, f"ActivationCurvatureMonitor, {when}")
        assert [row[1] for row in ours] == [0, 0]  # scalar synchronisations, on both nets
        assert all(row[0] > 0 and row[2] > 0 for row in ours)
    composer = [row[1] for row in rows_of(text, "Composer-style, activations")]
    assert composer == [12 * 4 * (1 + 16), 8 * 4 * (1 + 128)]  # an input, and an output a row, of every activation
    assert all(row[1] > 0 for row in rows_of(text, "fastai-style, activations"))


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*")  # curvlinops makes torch load its forward derivatives
def test_the_top_eigenvalue_beside_what_is_installed(printed):
    text = printed("loss")
    assert re.search(r"left out: (none|[A-Z]?[\w-]+(, [\w-]+)*)$", text, re.MULTILINE)
    for kind in ("warm", "first event"):
        assert len(re.findall(rf"^LossCurvatureMonitor, {kind}, an eighth +[\d.]+ ", text, re.MULTILINE)) == 2
    assert "CIFAR" not in text
