"""Both monitors in an ordinary fit: a BERT with random weights, and the MNIST classifier on real digits."""

import csv
import warnings

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from scipy.sparse.linalg import LinearOperator, eigsh
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader

from lit_gelu.callbacks import ActivationCurvatureMonitor, LossCurvatureMonitor
from lit_gelu.curvature import ProductBudget
from lit_gelu.data import MNISTData
from lit_gelu.tasks import MNISTClassifier

PNG = b"\x89PNG"


class Bert(LightningModule):
    """A BERT of two layers that tells two kinds of sentences apart, without dropout."""

    def __init__(self):
        super().__init__()
        from transformers import BertConfig, BertForSequenceClassification

        torch.manual_seed(0)
        size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        self.bert = BertForSequenceClassification(BertConfig(vocab_size=30, max_position_embeddings=12, **size, **off))

    def training_step(self, batch):
        return self.bert(input_ids=batch["input_ids"], labels=batch["labels"]).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def sentences():
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(30, (32, 10), generator=generator)
    return DataLoader([{"input_ids": row, "labels": row[:5].sum() % 2} for row in words], batch_size=8)


def fit(model, data, folder, callbacks, **options):
    logger = CSVLogger(folder, name="")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Lightning, about workers and short epochs
        trainer = Trainer(
            accelerator="cpu",
            devices=1,
            logger=logger,
            callbacks=callbacks,
            log_every_n_steps=1,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **options,
        )
        trainer.fit(model, data)
    return folder / f"version_{logger.version}"


def logged(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name]) for row in rows if row[name]] for name in rows[0]}


def top_eigenvalue_by_arpack(model, batch):
    """The largest eigenvalue by scipy, from double backward written out."""
    parameters = list(model.parameters())
    with sdpa_kernel(SDPBackend.MATH):
        gradient = torch.autograd.grad(model.training_step(batch), parameters, create_graph=True, allow_unused=True)

    def product(vector):
        pieces = torch.from_numpy(np.asarray(vector, dtype=np.float32).ravel()).split([p.numel() for p in parameters])
        form = sum((g * v.view_as(g)).sum() for g, v in zip(gradient, pieces, strict=True) if g is not None)
        found = torch.autograd.grad(form, parameters, retain_graph=True, allow_unused=True)
        flat = [torch.zeros_like(p) if f is None else f for p, f in zip(parameters, found, strict=True)]
        return torch.cat([part.flatten() for part in flat]).numpy()

    size = sum(p.numel() for p in parameters)
    operator = LinearOperator((size, size), matvec=product, dtype=np.float32)
    return eigsh(operator, k=1, which="LA", return_eigenvectors=False)[0]


@pytest.mark.pictures
@pytest.mark.full
def test_bert_with_random_weights(tmp_path):
    model, plain = Bert(), Bert()
    activation = ActivationCurvatureMonitor(every_n_steps=2)
    quantities = ["top_eigenvalue", "trace", "spectral_density"]
    loss = LossCurvatureMonitor(
        quantities, at_steps=[2, 7], fraction=None, budget=ProductBudget(lanczos_steps=40, warm_steps=40, accuracy=None)
    )
    folder = fit(model, sentences(), tmp_path, [activation, loss], max_epochs=2)
    fit(plain, sentences(), tmp_path, [], max_epochs=2)
    same = zip(model.parameters(), plain.parameters(), strict=True)
    assert all(torch.equal(watched, alone) for watched, alone in same)

    sites = [f"bert.bert.encoder.layer.{number}.intermediate.intermediate_act_fn" for number in range(2)]
    assert set(sites) <= activation.latest.keys()
    figures = logged(folder)
    assert len(figures["curvature/loss/top_eigenvalue"]) == 2
    assert all(len(figures[f"curvature/{site}/mean_squared_derivative"]) == 4 for site in sites)
    last_batch = list(sentences())[-1]
    exact = top_eigenvalue_by_arpack(model, last_batch)  # the last event was at the parameters as they are now
    assert loss.latest["top_eigenvalue"] == pytest.approx(exact, rel=1e-3)
    assert (folder / "curvature_loss_spectral_density.png").read_bytes().startswith(PNG)


@pytest.mark.pictures
@pytest.mark.full
@pytest.mark.realdata
def test_the_mnist_classifier_on_mnist(tmp_path):
    torch.manual_seed(0)
    activation = ActivationCurvatureMonitor(every_n_steps=20)
    loss = LossCurvatureMonitor(
        ["top_eigenvalue", "smallest_eigenvalue", "trace", "directional", "spectral_density"], every_n_steps=40
    )
    folder = fit(MNISTClassifier("gelu"), MNISTData(), tmp_path, [activation, loss], max_steps=120, limit_val_batches=2)
    figures = logged(folder)
    assert len(figures["curvature/loss/top_eigenvalue"]) == 3
    assert all(value > 0 for value in figures["curvature/loss/top_eigenvalue"])
    assert all(
        low < high
        for low, high in zip(
            *(figures[f"curvature/loss/{name}"] for name in ("smallest_eigenvalue", "top_eigenvalue")), strict=True
        )
    )
    assert len(figures["curvature/hidden.7.activation/mean"]) == 6
    assert figures["train_loss"][-1] < 0.7 < figures["train_loss"][0]
    assert (folder / "curvature_loss_spectral_density.png").read_bytes().startswith(PNG)
