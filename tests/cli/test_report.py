"""``lit-gelu report``: a page of a folder or a checkpoint, and sentences where there is none to make."""

import json

import pytest
import torch
from callback_helpers import SmallNet, loader, quiet_trainer
from lightning.pytorch.callbacks import LearningRateMonitor
from swap_runs import TwoOptimizers

from lit_gelu.callbacks import LossCurvatureMonitor
from lit_gelu.cli.main import main
from lit_gelu.report import read_report

CSV = "epoch,step,lr-SGD,train_loss,curvature/loss/top_eigenvalue\n0,0,0.1,2.5,\n0,1,0.1,1.5,19\n"
SWAP = {"epoch": 0, "step": 1, "order": 0, "sites": {"net.1": {"old": "relu", "new": "gelu"}}}
HEAT_MAPS = {"statistics": ("curvature", "share_saturated"), "columns": [(1, {"net.1": [0.4, 0.95]})]}


@pytest.fixture
def checkpoint(tmp_path):
    net = SmallNet()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    content = {
        "state_dict": net.state_dict(),
        "global_step": 2,
        "epoch": 0,
        "pytorch-lightning_version": "2.6.0",
        "hyper_parameters": {"dropout": 0.5},
        "optimizer_states": [optimizer.state_dict()],
        "lit_gelu_activation_swaps": [{"state_key": "ActivationSwap", "record": SWAP}],
        "lit_gelu_activations": {"net.1": "gelu", "net.5": "relu"},
        "callbacks": {"ActivationCurvatureMonitor": {"heat_maps": HEAT_MAPS}},
    }
    path = tmp_path / "version_0" / "checkpoints" / "last.ckpt"
    path.parent.mkdir(parents=True)
    torch.save(content, path)
    return path


def test_a_folder_with_its_newest_checkpoint(checkpoint, tmp_path, capsys):
    folder = tmp_path / "version_0"
    (folder / "metrics.csv").write_text(CSV)
    assert main(["report", str(folder), "--title", "</script>"]) == 0
    printed = capsys.readouterr().out
    assert f"wrote {folder / 'report.html'}" in printed
    found = read_report(folder / "report.html")
    assert (found.title, found.steps, found.environment_of) == ("</script>", 2, "page")
    assert found.curve("train_loss").values == (2.5, 1.5)
    assert [(site.name, site.at_start, site.at_end) for site in found.sites] == [
        ("net.1", "relu", "gelu"),
        ("net.5", "relu", "relu"),
    ]
    assert [(swap.step, swap.changes[0].site) for swap in found.swaps] == [(1, "net.1")]
    assert {(finding.level, finding.topic) for finding in found.findings} == {
        ("warning", "saturation"),
        ("note", "edge of stability"),
    }
    assert "note: curvature/loss/top_eigenvalue: The sharpness was 19 at step 1, 0.95 of the limit 20" in printed


def test_a_checkpoint_alone(checkpoint, tmp_path, capsys):
    assert main(["report", str(checkpoint), "--output", str(tmp_path / "page.html"), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["configuration"]["Hyper-parameters of the checkpoint"] == {"dropout": "0.5"}
    assert "a checkpoint does not hold them" in plain["missing"][0]
    assert read_report(tmp_path / "page.html").curve("curvature/net.1/curvature").values == (0.4,)


def test_all_groups_of_an_optimizer_count(checkpoint, tmp_path, capsys):
    net = SmallNet()
    groups = [{"params": [net.net[0].weight], "lr": 1e-3}, {"params": [net.net[0].bias], "lr": 5.0}]
    content = torch.load(checkpoint, weights_only=True)
    torch.save({**content, "optimizer_states": [torch.optim.SGD(groups, lr=0.1).state_dict()]}, checkpoint)
    csv = CSV.replace("lr-SGD", "lr-SGD/pg1,lr-SGD/pg2").replace(",0.1,", ",0.001,5.0,")
    (tmp_path / "version_0" / "metrics.csv").write_text(csv)
    assert main(["report", str(tmp_path / "version_0"), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["optimizers"][0]["group_rates"] == [1e-3, 5.0]
    stability = [one for one in plain["findings"] if one["topic"] == "edge of stability"]
    assert [one["level"] for one in stability] != ["good"]


def test_logs_of_several_optimizers_do_not_judge_the_critical_rate(tmp_path, capsys):
    class Measured(TwoOptimizers):
        def curvature_loss(self, batch):
            return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])

    callbacks = [
        LossCurvatureMonitor(["critical_sharpness"], every_n_steps=1, fraction=None),
        LearningRateMonitor(logging_interval="step"),
    ]
    quiet_trainer(tmp_path, *callbacks, max_epochs=1).fit(Measured(), loader())
    assert main(["report", str(tmp_path / "logs" / "0"), "--json"]) == 0
    found = read_report(tmp_path / "logs" / "0" / "report.html")
    assert found.curve("curvature/loss/critical_learning_rate")
    assert not [finding for finding in found.findings if finding.topic == "critical learning rate"]


@pytest.mark.parametrize("states", [[], [{}]])
def test_a_run_without_an_optimizer_is_not_told_to_read_its_checkpoint(states, checkpoint, tmp_path, capsys):
    content = torch.load(checkpoint, weights_only=True)
    torch.save({**content, "optimizer_states": states}, checkpoint)
    (tmp_path / "version_0" / "metrics.csv").write_text(CSV)
    assert main(["report", str(tmp_path / "version_0"), "--json"]) == 0
    (sharp,) = (one for one in json.loads(capsys.readouterr().out)["findings"] if one["topic"] == "sharpness")
    assert "None are known of this run" in sharp["text"]
    assert sharp["advice"].startswith("If it had an optimizer, ")


def test_a_damaged_checkpoint_is_among_what_is_missing(checkpoint, tmp_path, capsys):
    checkpoint.write_bytes(b"nothing")
    (tmp_path / "version_0" / "metrics.csv").write_text(CSV)
    assert main(["report", str(tmp_path / "version_0")]) == 0
    assert "missing: last.ckpt: the newest checkpoint was not read" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none"], "does not exist"),
        (["."], "holds nothing of a run"),
        (["bad.ckpt"], "is no checkpoint of Lightning"),
        (["bad.ckpt", "--output", "page.txt"], "ends in .html"),
        (["\0"], "does not exist"),
    ],
    ids=["missing", "empty", "damaged", "suffix", "nul"],
)
def test_mistakes_are_explained(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if arguments[0] == "bad.ckpt":
        (tmp_path / "bad.ckpt").write_bytes(b"nothing")
    assert main(["report", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not list(tmp_path.glob("*.html"))
