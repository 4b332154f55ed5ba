"""What hangs on a module in containers and plain objects is put back, in the very same objects."""

import collections
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from lit_gelu.curvature.probe.loss_probe import LossProbe
from lit_gelu.curvature.probe.state import Contents


class Meter:
    """As those of ImageNet scripts are."""

    def __init__(self):
        self.total, self.count, self.values = 0.0, 0, []

    def update(self, value):
        self.total += value
        self.count += 1
        self.values.append(value)


class Records(nn.Module):
    """Keeps its history in every kind of place."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))
        self.history = {"loss": [0.5], "by": {"epoch": collections.deque([1, 2], maxlen=2)}}
        self.meter = Meter()
        self.meters = {"train": Meter()}
        self.pair = ([1], {3})
        self.state = {"average": torch.ones(3), "many": [torch.zeros(2, 2)]}
        self.bag = SimpleNamespace(seen=0, averages=[torch.zeros(2)])
        self.confusion = np.zeros((2, 2))
        self.itself = [self.history]
        self.itself.append(self.itself)  # a cycle

    def training_step(self, x):
        loss = self.weight * x.sum() * (1 + self.state["average"].sum() + self.meter.count + self.confusion.sum())
        value = loss.item()
        self.history["loss"].append(value)
        self.history["by"]["epoch"].append(value)
        self.history["new"] = value
        self.meter.update(value)
        self.meters["train"].update(value)
        self.pair[0].append(value)
        self.pair[1].add(value)
        self.state["average"].mul_(0.9).add_(loss.detach())
        self.state["many"][0].data += 1
        self.bag.seen += 1
        self.bag.averages[0][1] += value
        self.confusion[0, 1] += 1
        return loss

    def everything(self):
        tensors = [self.state["average"], self.state["many"][0], self.bag.averages[0]]
        meters = [(m.total, m.count, list(m.values)) for m in (self.meter, self.meters["train"])]
        return (
            {"loss": list(self.history["loss"]), "epoch": list(self.history["by"]["epoch"]), "keys": [*self.history]},
            (list(self.pair[0]), set(self.pair[1]), self.bag.seen, self.confusion.tolist()),
            (meters, [tensor.tolist() for tensor in tensors], list(map(id, tensors))),
            [id(each) for each in (self.history["loss"], self.history["by"]["epoch"], self.meter.values, self.pair[0])],
        )


def test_everything_is_put_back_before_each_call_and_at_the_end():
    module = Records()
    before, held = module.everything(), module.history["loss"]  # someone else holds the list
    for _ in range(2):  # the second event of a module is guarded in another way than the first
        with LossProbe(module, [torch.ones(2)]) as probe:
            losses = {probe.closures[0]().item() for _ in range(3)}
        assert losses == {2.0 * 2 * 4}  # weight, sum of the batch, and one more than the average's sum
        assert module.everything() == before
    assert held is module.history["loss"]
    module.training_step(torch.ones(2))
    assert module.everything() != before


def test_a_sum_that_takes_the_graph_with_it_is_a_plain_tensor_again():
    class Sums(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(2.0))
            self.sums = {"loss": torch.zeros(())}

        def training_step(self, x):
            loss = self.weight * x.sum()
            self.sums["loss"] += loss
            return loss

    module = Sums()
    with LossProbe(module, [torch.ones(2)]) as probe:
        assert [probe.closures[0]().item() for _ in range(2)] == [4.0, 4.0]
    assert module.sums["loss"].item() == 0
    assert not module.sums["loss"].requires_grad


def test_objects_of_libraries_are_not_looked_into():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    contents = Contents()
    contents.keep([optimizer])
    optimizer.note = "new"
    contents.restore()
    assert optimizer.note == "new"
