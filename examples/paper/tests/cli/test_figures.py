"""``lit-gelu paper figures``."""

from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from paper_records import run_record

from lit_gelu.cli.main import main
from gelu_paper.records.run_record import Robustness

CURVES = {
    "train_loss": [0.3, 0.1],
    "val_loss": [0.3, 0.2],
    "val_error": [0.1, 0.1],
    "test_error": [0.1, 0.1],
    "test_loss": [0.2, 0.1],
    "train_error": [0.1, 0.1],
}


def everything(preset="quick", arms=("gelu", "relu", "elu")):
    """Return a run of every curve in every figure."""
    levels = Robustness((0.0, 1.0), (0.02, 0.3), (0.1, 3.0))
    return [
        replace(
            run_record(experiment, arm, learning_rate=rate, setting=setting, curves=CURVES, preset=preset),
            robustness=levels if setting == {"keep": 1.0} else None,
        )
        for arm in arms
        for experiment, setting, rate in (
            ("mnist", {"keep": 1.0}, 1e-3),
            ("mnist", {"keep": 0.5}, 1e-3),
            ("autoencoder", {}, 1e-3),
            ("autoencoder", {}, 1e-4),
            ("timit", {}, 1e-3),
            ("cifar10", {}, 1e-3),
            ("cifar100", {}, 0.1),
        )
    ]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = tmp_path / "runs/paper/quick"
    results.mkdir(parents=True)
    return results


def write_results(folder, records):
    (folder / "runs.jsonl").write_text("".join(f"{record.to_json()}\n" for record in records))


def test_all_seven(folder, capsys):
    write_results(folder, everything())
    assert main(["paper", "figures"]) == 0
    assert sorted(path.name for path in (folder / "figures").iterdir()) == [f"figure_{n}.png" for n in range(1, 8)]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (folder / "figures").iterdir())
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("wrote ") == 7


def test_some_as_svg_elsewhere(folder, tmp_path, capsys):
    write_results(folder, everything())
    arguments = ["--only", "timit", "2", "--format", "svg", "--output", "out", "--published", "--band"]
    assert main(["paper", "figures", *arguments]) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["figure_2.svg", "figure_5.svg"]
    assert ET.parse(tmp_path / "out/figure_5.svg").getroot().tag.endswith("svg")


def test_what_is_missing_is_said_and_the_exit_code_tells(folder, tmp_path, capsys):
    records = [record for record in everything() if record.experiment != "cifar100"]
    write_results(folder, [record for record in records if (record.experiment, record.arm) != ("timit", "relu")])
    assert main(["paper", "figures"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert "figure 7 (cifar100) is not drawn: there are no runs of it" in lines
    assert "figure 5 (timit) is incomplete: there are no runs of ReLU" in lines
    assert not (folder / "figures/figure_7.png").exists()
    assert (folder / "figures/figure_5.png").exists()
    assert main(["paper", "figures", "--only", "2", "3"]) == 0


def test_further_arms(folder, capsys):
    write_results(folder, everything(arms=("gelu", "silu")))
    assert main(["paper", "figures", "--only", "2", "--arms", "gelu", "silu"]) == 0
    assert main(["paper", "figures", "--only", "2", "--arms", "gelu", "elu"]) == 1
    assert "no runs of no dropout: ELU" in capsys.readouterr().err


def test_an_arm_of_one_s_own_is_drawn(folder):
    write_results(folder, everything(arms=("gelu", "mine")))
    assert main(["paper", "figures", "--only", "2", "--arms", "gelu", "mine"]) == 0


@pytest.mark.parametrize("only", ["1", "2"])
def test_an_arm_that_does_not_exist(folder, only, capsys):
    write_results(folder, everything())
    assert main(["paper", "figures", "--only", only, "--arms", "gelu", "slu"]) == 2
    assert "There is no arm 'slu'. Did you mean 'silu'? Accepted: gelu, relu" in capsys.readouterr().err
    assert not (folder / "figures").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 1, "curves": {name: [0.1] for name in CURVES}}, "measured train_loss at other epochs"),
        ({"preset": "full"}, "The runs of 'timit' are of the presets full, quick"),
    ],
)
def test_runs_that_do_not_fit_together_leave_out_their_figure_only(folder, change, said, capsys):
    named = {"learning_rate": 1e-3, "curves": CURVES, "preset": "quick", "seed": 7} | change
    write_results(folder, [*everything(), run_record("timit", "gelu", **named)])
    assert main(["paper", "figures", "--only", "2", "5", "6"]) == 1
    assert sorted(path.name for path in (folder / "figures").iterdir()) == ["figure_2.png", "figure_6.png"]
    (line,) = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("wrote ")]
    assert line.startswith("figure 5 (timit) is not drawn: ")
    assert said in line


def test_figure_1_needs_no_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["paper", "figures", "--only", "1"]) == 0
    assert (tmp_path / "runs/paper/quick/figures/figure_1.png").is_file()


@pytest.mark.parametrize("only", ["1", "5"])
def test_figures_of_a_results_file_stand_beside_it(folder, only, capsys):
    write_results(folder, everything())
    assert main(["paper", "figures", "--only", only, "--results", "runs/paper/quick/runs.jsonl"]) == 0
    assert (folder / f"figures/figure_{only}.png").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--results", "nowhere"], "There are no runs in 'nowhere'"),
        (["--only", "8"], "No figure '8'. Accepted: 1 (functions), 2 (mnist)"),
        (["--output", "file"], "Give a path in a folder that you may write to"),
        (["--format", "gif"], "gif"),
    ],
)
def test_mistakes_get_a_message_and_no_stack_trace(arguments, message, folder, tmp_path, capsys):
    write_results(folder, everything())
    (tmp_path / "file").write_text("")
    assert main(["paper", "figures", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err


def test_help_names_the_figures(capsys):
    assert main(["paper", "figures", "--help"]) == 0
    assert "3 mnist_robustness" in capsys.readouterr().out
