"""`lit-gelu fit --ckpt_path`: a run with a swap goes on from within an epoch, to the bit if the configuration asks."""

from pathlib import Path

import pytest
import torch
import yaml
from cli_helpers import forget_seeds

from lit_gelu.cli.main import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_relu_to_gelu.yaml"
EXACT = {"class_path": "lit_gelu.callbacks.ExactResume"}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    forget_seeds()


def write_configuration(path, *, exact):
    """Write the example's configuration, with a smaller net, dropout, and every checkpoint kept."""
    config = yaml.safe_load(EXAMPLE.read_text())
    assert EXACT in config["trainer"]["callbacks"]
    config["model"]["init_args"] |= {"hidden_layers": 2, "keep": 0.5}
    config["data"]["init_args"] |= {"batch_size": 128}
    config["trainer"] |= {"max_epochs": 3, "accelerator": "cpu", "log_every_n_steps": 1}
    config["trainer"] |= {"enable_progress_bar": False, "enable_model_summary": False}
    swap, *others = config["trainer"]["callbacks"]
    swap["init_args"]["at_epoch"] = 1
    others[-1]["init_args"] |= {"save_top_k": -1, "every_n_train_steps": 4}
    config["trainer"]["callbacks"] = [swap, *(other for other in others if exact or other != EXACT)]
    path.write_text(yaml.safe_dump(config))


def weights_of(path):
    return torch.load(path, weights_only=True)["state_dict"]


def run(arguments, version):
    """Run `lit-gelu fit` and return the folder of its checkpoints."""
    assert main(["fit", *arguments]) == 0
    return Path(f"runs/digits_relu_to_gelu/version_{version}/checkpoints")


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks used to create the checkpoint")
@pytest.mark.filterwarnings("ignore:The dirpath has changed from")
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
def test_a_resumed_run_is_the_same_run_only_with_exact_resume(tmp_path, capsys):
    write_configuration(Path("exact.yaml"), exact=True)
    write_configuration(Path("plain.yaml"), exact=False)
    whole = run(["--config=exact.yaml"], 0)
    steps = {int(path.stem.rpartition("=")[2]): path for path in whole.glob("epoch=*.ckpt")}
    assert {8, 16} < steps.keys()  # of 9 steps an epoch: before the swap and after it, both within an epoch
    for version, step in enumerate((8, 16), start=1):
        resumed = run(["--config=exact.yaml", f"--ckpt_path={steps[step]}"], version)
        first, second = weights_of(whole / "last.ckpt"), weights_of(resumed / "last.ckpt")
        assert all(torch.equal(first[name], second[name]) for name in first), step
    other = run(["--config=plain.yaml", f"--ckpt_path={steps[8]}"], 3)
    second = weights_of(other / "last.ckpt")
    assert not all(torch.equal(first[name], second[name]) for name in first)
    checkpoint = torch.load(other / "last.ckpt", weights_only=True)
    assert set(checkpoint["lit_gelu_activations"].values()) == {"gelu"}  # the swap itself is made either way
