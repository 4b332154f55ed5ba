"""What `make release-check` runs in an environment that has nothing but the wheel, and with each extra alone.

Every entry is what the extra is for, in the shortest form. It has to succeed with the extra. Without it, it has to fail
and to name the extra.
"""

import shlex
from dataclasses import dataclass


@dataclass(frozen=True)
class Smoke:
    """One call of Python."""

    arguments: tuple[str, ...]
    writes: str = ""  # a file that is there afterwards
    is_asked_for: bool = True  # by code of ours, whose error names the extra; notebooks run outside of it


def _command(line: str, writes: str = "") -> Smoke:
    return Smoke(("-m", "lit_gelu", *shlex.split(line)), writes)


def _runtime(extra: str, library: str) -> Smoke:
    """Import a runtime of `lit_gelu.audit.adapters`; files for them are made in the tests."""
    return Smoke(("-c", f"from lit_gelu.extras import need; need({library!r}, extra={extra!r}, what='Opening')"))


# Modules that draw import matplotlib when they are imported themselves, which nothing does before `need`.
IMPORT_ALL = """
import importlib, pkgutil
import lit_gelu
count = 0
for module in pkgutil.walk_packages(lit_gelu.__path__, "lit_gelu."):
    if module.name in {
        "lit_gelu.__main__",
    }:
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:  # kernels are in Triton's language, which is for Linux alone
        if error.name != "triton":
            raise
    count += 1
print(f"{count} modules imported, lit-gelu {lit_gelu.__version__}")
"""

TRAIN_SWAP_EXPORT = """
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset
from lit_gelu.callbacks import ActivationCurvatureMonitor, ActivationSwap
from lit_gelu.export import OnnxPredictor, check_parity, export_onnx

class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))

    def forward(self, x):
        return self.layers(x)

    def training_step(self, batch, index):
        return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

x = torch.randn(64, 4)
loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=8)
net = Net()
callbacks = [ActivationSwap({"activation:relu": "gelu"}, at_epoch=1), ActivationCurvatureMonitor(every_n_steps=2)]
trainer = Trainer(max_epochs=2, callbacks=callbacks, accelerator="cpu", log_every_n_steps=1, enable_progress_bar=False)
trainer.fit(net, loader)
export_onnx(net, "net.onnx", x[:2])
print(check_parity(net, "net.onnx").summary())
assert OnnxPredictor("net.onnx", providers=["CPUExecutionProvider"])(x).shape == (64, 2)
"""

_LOGGED = (
    "fit --model lightning.pytorch.demos.boring_classes.BoringModel --trainer.max_epochs 1 --trainer.accelerator cpu "
    "--data lightning.pytorch.demos.boring_classes.BoringDataModule --trainer.enable_progress_bar false "
    "--trainer.logger TensorBoardLogger "
    "--trainer.logger.save_dir logs --trainer.logger.name '' --trainer.logger.version v"
)

_WAVE = """
import wave
from pathlib import Path
with wave.open("a.wav", "wb") as file:
    file.setnchannels(1), file.setsampwidth(2), file.setframerate(16000)
    file.writeframes(bytes(3200))
from lit_gelu.data.timit_corpus import read_audio
assert read_audio(Path("a.wav")).shape == (1600,)
"""

BASE = {
    "the version": _command("--version"),
    "help": _command("--help"),
    "every module": Smoke(("-c", IMPORT_ALL)),
    "the doctor": _command("doctor"),
    "train, swap, watch, export, prove, predict": Smoke(("-c", TRAIN_SWAP_EXPORT), "net.onnx"),
}
SMOKES = {
    "plots": _command("activations plot gelu --output gelu.png", "gelu.png"),
    "digits": Smoke(("-c", "from lit_gelu.data import DigitsData; DigitsData().setup()")),
    "demo": _command("demo --epochs 2 --output demo", "demo/report.html"),
    "tensorboard": _command(_LOGGED, "logs/v/hparams.yaml"),
    "litert": _runtime("litert", "ai_edge_litert.interpreter"),
    "executorch": _runtime("executorch", "executorch.runtime"),
    "openvino": _runtime("openvino", "openvino"),
    "ncnn": _runtime("ncnn", "ncnn"),
    "speech": Smoke(("-c", _WAVE)),
    "audit": Smoke(("-c", "import open_clip, safetensors.torch, timm, transformers"), is_asked_for=False),
    "notebook": Smoke(("-c", "import ipykernel, ipywidgets, matplotlib, nbclient, sklearn"), is_asked_for=False),
    "all": Smoke(("-c", "import matplotlib, nbclient, sklearn, soundfile, tensorboard"), is_asked_for=False),
}
