"""``lit-gelu paper`` and ``lit-gelu paper list``."""

import json

import pytest

from lit_gelu.cli.main import main
from gelu_paper.protocol.experiments import EXPERIMENTS


def test_without_a_sub_command_it_says_what_there_is(capsys):
    assert main(["paper"]) == 0
    assert "lit-gelu paper run --preset quick" in capsys.readouterr().out
    assert main(["--help"]) == 0
    assert "\n  paper " in capsys.readouterr().out


def test_the_table(capsys):
    assert main(["paper", "list"]) == 0
    text = capsys.readouterr().out
    assert "586 runs, 476 different" in text
    for name in EXPERIMENTS:
        assert f"\n{name} " in text  # whole, not cut
    assert "gelu 20.74" in text
    assert "0.427 PFLOP" in text  # 120 x 3.56e12
    assert "not the paper's protocol" not in text


def test_the_short_preset_says_what_it_shortens(capsys):
    assert main(["paper", "list", "--preset", "quick", "--only", "mnist"]) == 0
    text = capsys.readouterr().out
    assert "mnist: not the paper's protocol: learning_rates 0.001 (full: 0.001, 0.0001, 1e-05)" in text
    assert "The paper prints no error" in text
    assert "tweets" not in text


def test_plain_data(capsys):
    assert main(["paper", "list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows) == set(EXPERIMENTS)
    assert rows["cifar10"]["learning_rate_from"] == "cifar10_search"
    assert rows["cifar10"]["published_test_error_percent"] == {"gelu": "7.89", "relu": "8.16", "elu": "8.41"}
    assert rows["mnist"]["runs"] == 120
    assert rows["mnist"]["arms"]["gelu"] == "gelu_tanh"


@pytest.mark.parametrize(
    ("arguments", "message"), [(["--only", "minst"], "Did you mean 'mnist'?"), (["--preset", "fast"], "fast")]
)
def test_mistakes(capsys, arguments, message):
    assert main(["paper", "list", *arguments]) == 2
    assert message in capsys.readouterr().err
