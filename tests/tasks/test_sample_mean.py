"""Means over whole sets keep their digits under every precision of the Trainer."""

import pytest
import torch
from lightning.pytorch import LightningDataModule
from small_task import quiet_trainer
from torch.utils.data import DataLoader, TensorDataset

from lit_gelu.tasks import MNISTClassifier
from lit_gelu.tasks.activation_task import SampleMean

COUNT = 3000


class Many(LightningDataModule):
    """So many samples that a count in bfloat16, which has 8 bits, stops at 256."""

    def setup(self, stage=None):
        generator = torch.Generator().manual_seed(0)
        images = torch.rand(COUNT, 1, 28, 28, generator=generator)
        self.samples = TensorDataset(images, torch.randint(10, (COUNT,), generator=generator))

    def test_dataloader(self):
        return DataLoader(self.samples, batch_size=30)


@pytest.mark.parametrize("precision", ["bf16-true", "16-true", "32-true", "64-true"])
def test_the_means_are_those_of_the_outputs(precision):
    torch.manual_seed(0)
    model, data = MNISTClassifier("relu", hidden_layers=1), Many()
    (found,) = quiet_trainer(precision=precision).test(model, datamodule=data, verbose=False)
    images, labels = data.samples.tensors
    dtype = model.output.weight.dtype
    assert dtype == {"bf": torch.bfloat16, "16": torch.float16, "32": torch.float32, "64": torch.float64}[precision[:2]]
    with torch.no_grad():
        logits = torch.cat([model.eval()(part.to(dtype)) for part in images.split(30)]).double()
    assert found["test_error"] == pytest.approx((logits.argmax(1) != labels).double().mean().item(), abs=2e-3)
    loss = torch.nn.functional.cross_entropy(logits, labels).item()
    assert found["test_loss"] == pytest.approx(loss, rel=1e-5 if precision[:2] in {"32", "64"} else 2e-3)


def test_no_conversion_takes_digits_of_what_was_summed():
    metric = SampleMean()
    metric.update(torch.full((1001,), 0.25))
    for convert in (lambda m: m.to(torch.bfloat16), lambda m: m.half(), lambda m: m.to("cpu", torch.float16)):
        convert(metric)
        assert metric.weight.dtype == torch.float32
        metric.update(torch.full((1000,), 0.25, dtype=torch.bfloat16))
    assert metric.weight == 4001
    assert metric.compute() == 0.25
    assert metric.to(torch.float64).weight.dtype == torch.float64
