"""Losses written out against autograd over torch's own: gradients to the bit, what is logged to its last bits."""

import pytest
import torch
from torch.nn import functional

from lit_gelu.replicas.errors import ReplicaArgumentError
from lit_gelu.replicas.written.objectives import CrossEntropy, SquaredError

BATCH, WIDTH = 5, 13
LOSSES = [
    pytest.param(CrossEntropy, lambda outputs, inputs, labels: functional.cross_entropy(outputs, labels), id="labels"),
    pytest.param(SquaredError, lambda outputs, inputs, labels: functional.mse_loss(outputs, inputs), id="inputs"),
]


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def made(kind):
    tensors = {}

    def kept(name, steps):
        return tensors.setdefault((name, steps), torch.empty(steps, BATCH, WIDTH))

    return kind(kept)


@pytest.mark.parametrize(("kind", "function"), LOSSES)
@pytest.mark.parametrize("logs_outputs", [True, False])
def test_all_steps(generator, kind, function, logs_outputs):
    part = made(kind)
    for steps in (1, 7, 3):  # as in the batches of an epoch
        outputs, inputs, others = (torch.randn(steps, BATCH, WIDTH, generator=generator) for _ in range(3))
        labels = torch.randint(WIDTH, (steps, BATCH), generator=generator)
        part.begin(labels)
        wanted = []
        for step in range(steps):
            leaf = outputs[step].clone().requires_grad_()
            loss = function(leaf, inputs[step], labels[step])
            loss.backward()
            with torch.no_grad():
                if not logs_outputs:
                    part.log(step, others[step], inputs[step])
                    loss = function(others[step], inputs[step], labels[step])
                found = part.backward(step, outputs[step], inputs[step], logs_outputs)
            assert torch.equal(found, leaf.grad)
            wanted.append(loss.detach())
        torch.testing.assert_close(part.logged(), torch.stack(wanted), rtol=1e-6, atol=0)


@pytest.mark.parametrize("label", [-100, -1, WIDTH])
def test_labels_that_are_no_classes(label):
    labels = torch.zeros(2, BATCH, dtype=torch.int64)
    labels[1, 3] = label
    with pytest.raises(ReplicaArgumentError, match=rf"are {min(label, 0)} to {max(label, 0)}, and the net has 13 cl"):
        made(CrossEntropy).begin(labels)
