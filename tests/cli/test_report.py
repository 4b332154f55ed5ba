"""``lit-gelu report``: a page of a folder or a checkpoint, and exit code 2 where there is none to make."""

import json

import pytest
import torch
from callback_helpers import SmallNet

from lit_gelu.cli.main import main

CSV = (
    "epoch,step,train_loss,curvature/loss/learning_rate,curvature/loss/top_eigenvalue,curvature/net.1/share_saturated\n"
    "0,0,2.5,,,\n0,1,1.5,0.1,19,0.95\n"
)
SWAP = {"epoch": 0, "step": 1, "order": 0, "logged_step": 1, "sites": {"net.1": {"old": "relu", "new": "gelu"}}}


@pytest.fixture
def checkpoint(tmp_path):
    net = SmallNet()
    content = {
        "state_dict": net.state_dict(),
        "global_step": 2,
        "epoch": 0,
        "pytorch-lightning_version": "2.6.0",
        "hyper_parameters": {"dropout": 0.5},
        "optimizer_states": [torch.optim.SGD(net.parameters(), lr=0.1).state_dict()],
        "lit_gelu_activation_swaps": [{"state_key": "ActivationSwap", "record": SWAP}],
        "lit_gelu_activations": {"net.1": "gelu", "net.5": "relu"},
    }
    path = tmp_path / "version_0" / "checkpoints" / "last.ckpt"
    path.parent.mkdir(parents=True)
    torch.save(content, path)
    (tmp_path / "version_0" / "metrics.csv").write_text(CSV)
    return path


def report_of(capsys, *arguments):
    assert main(["report", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_folder_with_its_newest_checkpoint(checkpoint, tmp_path, capsys):
    folder = tmp_path / "version_0"
    plain = report_of(capsys, folder, "--title", "</script>")
    assert (plain["title"], plain["steps"]) == ("</script>", 2)
    assert plain["sites"] == [
        {"name": "net.1", "at_start": "relu", "at_end": "gelu"},
        {"name": "net.5", "at_start": "relu", "at_end": "relu"},
    ]
    assert [(swap["step"], swap["changes"][0]["site"]) for swap in plain["swaps"]] == [(1, "net.1")]
    findings = {finding["topic"]: finding for finding in plain["findings"]}
    assert {topic: finding["level"] for topic, finding in findings.items()} == {
        "saturation": "warning",
        "edge of stability": "note",
    }
    assert findings["edge of stability"]["figures"]["limit"] == pytest.approx(20.0)
    assert "<h1>&lt;/script&gt;</h1>" in (folder / "report.html").read_text()


def test_a_checkpoint_alone(checkpoint, tmp_path, capsys):
    plain = report_of(capsys, checkpoint, "--output", tmp_path / "page.html")
    assert plain["configuration"]["Hyper-parameters of the checkpoint"] == {"dropout": "0.5"}
    assert (plain["curves"], len(plain["missing"])) == ([], 1)
    assert (tmp_path / "page.html").is_file()


def test_a_damaged_checkpoint_is_among_what_is_missing(checkpoint, tmp_path, capsys):
    checkpoint.write_bytes(b"nothing")
    plain = report_of(capsys, tmp_path / "version_0")
    assert any("last.ckpt" in sentence for sentence in plain["missing"])
    assert plain["curves"]


@pytest.mark.parametrize("arguments", [["none"], ["."], ["bad.ckpt"], ["bad.ckpt", "--output", "page.txt"], ["\0"]])
def test_mistakes_are_explained(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if arguments[0] == "bad.ckpt":
        (tmp_path / "bad.ckpt").write_bytes(b"nothing")
    assert main(["report", *arguments]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not list(tmp_path.glob("*.html"))
