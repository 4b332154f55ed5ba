"""The paper's tasks, their own optimizers and schedules, with parameters that come in mid-training, and a resume."""

import pytest
import torch
from lightning.pytorch import Callback
from small_task import COLOUR, SmallData, quiet_trainer

from lit_gelu.callbacks import ActivationSwap, ExactResume
from lit_gelu.tasks import CIFAR10ConvNet, CIFAR100WideResNet, MNISTClassifier


class SaveEveryStep(Callback):
    def __init__(self, folder):
        self.folder = folder

    def on_train_batch_end(self, trainer, *arguments):
        trainer.save_checkpoint(self.folder / f"{trainer.global_step}.ckpt")


TASKS = {
    "mnist": (lambda: MNISTClassifier("relu", hidden_layers=2, keep=0.5), (1, 28, 28)),
    "cifar10": (lambda: CIFAR10ConvNet("relu", channels=(4, 6), epochs=4), COLOUR),
    "cifar100": (lambda: CIFAR100WideResNet("relu", blocks_per_stage=1, width_factor=1, epochs=4), COLOUR),
}


def run(task, folder, ckpt_path=None, *callbacks):
    torch.manual_seed(1)
    build, shape = TASKS[task]
    swaps = [
        ActivationSwap({"activation:relu": "prelu"}, at_step=2),
        ActivationSwap({"activation:prelu": "swish(learnable=True)"}, at_step=5),
    ]
    trainer = quiet_trainer(max_epochs=4, callbacks=[*swaps, ExactResume(), *callbacks])
    model = build()
    trainer.fit(model, datamodule=SmallData(shape), ckpt_path=ckpt_path)
    return model, trainer


@pytest.mark.parametrize("task", ["mnist", "cifar10", pytest.param("cifar100", marks=pytest.mark.full)])
def test_resumed_within_epochs_the_task_ends_the_same(tmp_path, task):
    whole, trainer = run(task, tmp_path, None, SaveEveryStep(tmp_path))
    held = [id(p) for group in trainer.optimizers[0].param_groups for p in group["params"]]
    assert sorted(held) == sorted(map(id, whole.parameters()))
    new = [parameter for name, parameter in whole.named_parameters() if "log_scale" in name]
    assert new
    assert all(parameter.item() != 0 for parameter in new)
    for step in (1, 4, 6, 8, 9):
        resumed, _ = run(task, tmp_path, tmp_path / f"{step}.ckpt")
        for (name, a), b in zip(whole.state_dict().items(), resumed.state_dict().values(), strict=True):
            assert torch.equal(a, b), (step, name)
