"""Both monitors in an ordinary fit of a BERT with random weights."""

import numpy as np
import pytest
import torch
from callback_helpers import collected_warnings, quiet_trainer
from lightning.pytorch import LightningModule
from scipy.sparse.linalg import LinearOperator, eigsh
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader

from lit_gelu.callbacks import ActivationCurvatureMonitor, LossCurvatureMonitor
from lit_gelu.curvature import ProductBudget


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


@pytest.mark.full
def test_bert_with_random_weights(tmp_path):
    activation = ActivationCurvatureMonitor(every_n_steps=2)
    budget = ProductBudget(lanczos_steps=40, warm_steps=40, accuracy=None)
    loss = LossCurvatureMonitor(["top_eigenvalue", "trace"], at_steps=[2, 7], fraction=None, budget=budget)
    models = Bert(), Bert()
    for model, monitors in zip(models, ([activation, loss], []), strict=True):
        with collected_warnings(""):  # about workers and short epochs
            quiet_trainer(tmp_path / str(len(monitors)), *monitors).fit(model, sentences())
    assert all(map(torch.equal, *(model.parameters() for model in models)))
    sites = {f"bert.bert.encoder.layer.{number}.intermediate.intermediate_act_fn" for number in range(2)}
    assert sites <= activation.latest.keys()
    exact = top_eigenvalue_by_arpack(models[0], list(sentences())[-1])  # measured at the parameters as they are now
    assert loss.latest["top_eigenvalue"] == pytest.approx(exact, rel=1e-3)
