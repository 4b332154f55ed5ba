"""The callbacks from LightningCLI's YAML."""

import sys

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


def test_swap_and_monitor_from_yaml(tmp_path, monkeypatch):
    path = tmp_path / "configuration.yaml"
    path.write_text(CONFIGURATION.format(folder=tmp_path))
    monkeypatch.setattr(sys, "argv", ["fit.py", "fit", f"--config={path}"])
    cli = LightningCLI(OneSelu, SmallData, save_config_callback=None, seed_everything_default=1)
    assert activations_of(cli.model) == ["GELU", "LeakyReLU"]
    header = (tmp_path / "logs" / "run" / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"activation_swap/replaced", "curvature/net.1/mean_gate"} <= set(header)
