"""Functions of torch in a training step, in the place of which a group puts its own rules, against runs alone."""

import pytest
import torch
from lightning.pytorch import LightningModule
from replica_runs import batched_products_are_single_ones, check_equal, trained_alone, trained_together
from torch import nn
from torch.nn import functional

from lit_gelu.replicas import NotReplicableError
from lit_gelu.replicas.forward.function_rules import RulesForFunctions
from lit_gelu.replicas.randomness.streams import Streams

STEPS = (1, 10, 16)  # of epochs of six


class Sequences(LightningModule):
    """Tokens, a layer over them, and a class."""

    def __init__(self, middle=nn.Identity, loss=functional.cross_entropy, **table):
        super().__init__()
        self.table, self.middle, self.last = nn.Embedding(9, 8, **table), middle(), nn.Linear(8, 5)
        self.loss = loss

    def training_step(self, batch, index):
        loss = self.loss(self.last(self.middle(self.table(batch[0])).mean(1)), batch[1])
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.5)


class Attending(nn.Module):
    """Attention of torch, with or without the weights that it attends with."""

    def __init__(self, weights=False, dropout=0.0):
        super().__init__()
        self.attention, self.weights = nn.MultiheadAttention(8, 2, dropout, batch_first=True), weights

    def forward(self, inputs):
        outputs, weights = self.attention(inputs, inputs, inputs, need_weights=self.weights)
        return outputs if weights is None else outputs + weights.mean()


class AttendingToItself(nn.Module):
    """Attention as a function, of one tensor three times."""

    def forward(self, inputs):
        heads = inputs.unflatten(-1, (2, 4)).transpose(1, 2)
        return functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2)


class Bags(nn.Module):
    """A table whose rows are added up by torch, for the signs of what it is given."""

    def __init__(self, **options):
        super().__init__()
        self.table = nn.EmbeddingBag(3, 8, **options)

    def forward(self, inputs):
        return inputs + self.table(inputs[..., 0].sign().long() + 1).unsqueeze(1)


class Encoding(nn.TransformerEncoderLayer):
    def __init__(self):
        super().__init__(8, 2, 16, dropout=0.0, batch_first=True)


def binary(logits, labels):
    return functional.binary_cross_entropy_with_logits(logits, functional.one_hot(labels, 5).float())


def binary_of_chances(logits, labels):
    return functional.binary_cross_entropy(logits.sigmoid(), functional.one_hot(labels, 5).float())


def summed(logits, labels):
    return functional.mse_loss(logits.sum(1), labels.float()) / 50


def samples():
    return torch.randint(9, (100, 6)), torch.randint(5, (100,))


def compare(cell, kinds=("vmap", "loop")):
    data = samples()
    alone = [trained_alone(Sequences, cell, seed, data, 16, STEPS) for seed in range(3)]
    for kind in kinds:
        together = trained_together(Sequences, [cell] * 3, [0, 1, 2], data, 16, STEPS, kind)
        check_equal(alone, together, batched_products_are_single_ones((8, 5), 16) or kind == "loop")


@pytest.mark.parametrize(
    "table", [{}, {"padding_idx": 0}, {"padding_idx": -1}, {"max_norm": 1.0}, {"scale_grad_by_freq": True}], ids=str
)
def test_embeddings(table):
    compare(table)


@pytest.mark.parametrize("options", [{}, {"padding_idx": 1}, {"max_norm": 0.5, "mode": "sum"}], ids=str)
def test_bags_of_embeddings(options):
    compare({"middle": lambda: Bags(**options)})


@pytest.mark.parametrize("kind", [nn.Embedding, Bags])
def test_sparse_gradients_are_refused(kind):
    cell = {"sparse": True} if kind is nn.Embedding else {"middle": lambda: Bags(sparse=True)}
    with pytest.raises(NotReplicableError, match=r"sparse=True.*loop"):
        trained_together(Sequences, [cell] * 2, [0, 1], samples(), 16, (1,), "vmap")
    compare(cell, kinds=["loop"])


@pytest.mark.parametrize("middle", [Attending, lambda: Attending(True), AttendingToItself, Encoding])
def test_attention(middle):
    compare({"middle": middle})


def test_dropout_of_attention():
    compare({"middle": lambda: Attending(True, 0.25)})
    with pytest.raises(NotReplicableError, match=r"draws random numbers.*loop"):
        trained_together(
            Sequences, [{"middle": lambda: Attending(False, 0.25)}] * 2, [0, 1], samples(), 16, (1,), "vmap"
        )
    compare({"middle": lambda: Attending(False, 0.25)}, kinds=["loop"])


@pytest.mark.parametrize("loss", [binary, binary_of_chances, summed])
def test_losses(loss):
    compare({"loss": loss})


@pytest.mark.parametrize("samples", [3, 5, 8, 31])
@pytest.mark.parametrize("shape", [(), (7,)], ids=["samples", "sequences"])
@pytest.mark.parametrize("loss", [functional.cross_entropy, functional.nll_loss])
def test_weights_of_classes_are_added_up_as_alone(loss, shape, samples):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(40, samples, 4, *shape, generator=generator).log_softmax(2).requires_grad_()
    labels = torch.randint(4, (40, samples, *shape), generator=generator)
    weight = torch.tensor([0.3, 1.7, 0.9, 1.1])
    with RulesForFunctions(Streams([torch.get_rng_state()] * 40)):
        found = torch.vmap(lambda one, classes: loss(one, classes, weight))(inputs, labels)
        named = torch.vmap(lambda one, classes: loss(one, classes, weight=weight))(inputs, labels)
    wanted = torch.stack([loss(one, classes, weight) for one, classes in zip(inputs, labels, strict=True)])
    assert torch.equal(found, wanted)
    assert torch.equal(named, wanted)
    gradients = [torch.autograd.grad(values.sum(), inputs)[0] for values in (found, wanted)]
    assert torch.equal(*gradients)
