"""The callbacks from LightningCLI's YAML."""

import sys

import pytest
import yaml
from callback_helpers import SmallNet, activations_of, loader
from lightning.pytorch import LightningDataModule
from lightning.pytorch.cli import LightningCLI
from torch import nn

CONFIGURATION = """
trainer:
  max_epochs: 2
  accelerator: cpu
  log_every_n_steps: 1
  enable_progress_bar: false
  enable_model_summary: false
  enable_checkpointing: false
  logger:
    class_path: lightning.pytorch.loggers.CSVLogger
    init_args: {{save_dir: {folder}, name: logs, version: run}}
  callbacks:
    - class_path: lit_gelu.callbacks.ActivationSwap
      init_args:
        swaps:
          "activation:relu": gelu(approximate='tanh')
          "class:torch.nn.SELU": {{name: leaky_relu, negative_slope: 0.2}}
        at_epoch: 1
    - class_path: lit_gelu.callbacks.FusedActivations
    - class_path: lit_gelu.callbacks.ActivationCurvatureMonitor
      init_args: {{every_n_steps: 2, sample_rows: null, include: ["net.*"]}}
"""


class OneSelu(SmallNet):
    def __init__(self) -> None:
        super().__init__()
        self.net[5] = nn.SELU()


class SmallData(LightningDataModule):
    def train_dataloader(self):
        return loader()


@pytest.fixture
def command_line(monkeypatch):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["fit.py", "fit", *arguments])
        return LightningCLI(OneSelu, SmallData, save_config_callback=None, seed_everything_default=1)

    return run


def test_swap_and_monitor_from_yaml(tmp_path, command_line):
    path = tmp_path / "configuration.yaml"
    path.write_text(CONFIGURATION.format(folder=tmp_path))
    cli = command_line(f"--config={path}")
    assert activations_of(cli.model) == ["GELU", "LeakyReLU"]
    header = (tmp_path / "logs" / "run" / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"activation_swap/replaced", "curvature/net.1/mean_gate"} <= set(header)


def test_printed_configuration_reads_back_the_same(tmp_path, capsys, command_line):
    def printed(path):
        with pytest.raises(SystemExit):
            command_line(f"--config={path}", "--print_config")
        return capsys.readouterr().out

    first_path, second_path = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first_path.write_text(CONFIGURATION.format(folder=tmp_path))
    first = printed(first_path)
    second_path.write_text(first)
    assert printed(second_path) == first
    swaps = yaml.safe_load(first)["trainer"]["callbacks"][0]["init_args"]["swaps"]
    assert swaps["activation:relu"] == "gelu(approximate='tanh')"
