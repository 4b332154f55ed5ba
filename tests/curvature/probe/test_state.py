"""What a training step writes to parameters, its batch and what hangs on the module does not outlast a probe."""

import collections
import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn import functional as F

from lit_gelu.curvature.loss import hessian_operator
from lit_gelu.curvature.probe.loss_probe import LossProbe
from lit_gelu.errors import ArgumentError


class Meter:
    """As those of ImageNet scripts are."""

    def __init__(self):
        self.total, self.count, self.values = 0.0, 0, []

    def update(self, value):
        self.total += value
        self.count += 1
        self.values.append(value)


class Window(collections.deque):
    """Is not built as its copy would be."""

    def __init__(self):
        super().__init__([0.0], maxlen=1)


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
        self.window, self.random = Window(), np.random.RandomState(0)
        self.holder = SimpleNamespace(meter=Meter())
        self.held = self.holder.meter  # looked at first within another object
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
        self.window.append(self.random.rand())
        self.held.update(value)
        return loss

    def everything(self):
        tensors = [self.state["average"], self.state["many"][0], self.bag.averages[0]]
        meters = [(m.total, m.count, list(m.values)) for m in (self.meter, self.meters["train"], self.held)]
        return (
            {"loss": list(self.history["loss"]), "epoch": list(self.history["by"]["epoch"]), "keys": [*self.history]},
            (list(self.pair[0]), set(self.pair[1]), self.bag.seen, self.confusion.tolist(), list(self.window)),
            self.random.get_state()[1].tolist(),
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


def batch(examples=6):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(examples, 4, generator=generator), torch.randn(examples, 4, generator=generator)


def bits(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def same(before, module):
    after = module.state_dict()
    return all(torch.equal(after[name], tensor) for name, tensor in before.items())


class Plain(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.student = nn.Linear(4, 4)

    def training_step(self, pair, batch_idx):
        return self.loss(*pair)

    def loss(self, x, y):
        return F.mse_loss(torch.tanh(self.student(x)), y)


class Teacher(Plain):
    """Averages the student's weights, in one of the ways that are usual, and learns from the result."""

    def __init__(self, how):
        super().__init__()
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.how = how

    def training_step(self, pair, batch_idx):
        for old, new in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            if self.how == "no_grad":
                with torch.no_grad():
                    old.mul_(0.5).add_(new, alpha=0.6)
            elif self.how == "data":
                old.data.mul_(0.5).add_(new.data, alpha=0.6)
            else:
                old.data = old.data * 0.5 + new.data * 0.6
        return F.mse_loss(self.student(pair[0]), self.teacher(pair[0]))


@pytest.mark.parametrize("how", ["no_grad", "data", "assigned"])
def test_a_teacher_is_as_it_was_found(how):
    module = Teacher(how)
    before, places = bits(module), [p.data_ptr() for p in module.parameters()]
    for _ in range(2):  # the second event of a module is guarded in another way than the first
        with LossProbe(module, [batch(), batch(3)]) as probe:
            losses = {number: {closure().item() for _ in range(3)} for number, closure in enumerate(probe.closures)}
            with hessian_operator(probe.closures, probe.parameters, samples=probe.samples) as hessian:
                assert hessian(torch.ones(hessian.size)).abs().sum() > 0
        assert same(before, module)
        assert [p.data_ptr() for p in module.parameters()] == places
        assert all(len(values) == 1 for values in losses.values())


@pytest.mark.parametrize("write", ["in place", "data", "assigned"])
def test_writing_to_a_trained_parameter_is_refused_and_put_back(write):
    class Clipping(Plain):
        def training_step(self, pair, batch_idx):
            weight = self.student.weight
            if write == "in place":
                with torch.no_grad():
                    weight.clamp_(-0.1, 0.1)
            elif write == "data":
                weight.data.clamp_(-0.1, 0.1)
            else:
                weight.data = weight.data.clamp(-0.1, 0.1)
            return super().training_step(pair, batch_idx)

    module = Clipping()
    before = bits(module)
    with pytest.raises(ArgumentError), LossProbe(module, [batch()]) as probe:
        probe.closures[0]()
    assert same(before, module)


@pytest.mark.parametrize("change", [lambda x: x.div_(255), lambda x: x.add_(torch.randn_like(x)), lambda x: x.zero_()])
def test_a_batch_changed_in_place_is_the_same_at_every_call(change):
    class Changes(Plain):
        def training_step(self, pair, batch_idx):
            self.seen.append(pair["x"].clone())
            change(pair["x"])
            pair["names"].append("more")
            return self.loss(pair["x"], pair.pop("y"))

    module, (x, y) = Changes(), batch()
    module.seen = seen = []
    sample = {"x": x.clone(), "y": y.clone(), "names": ["a"]}
    inputs = []
    with LossProbe(module, [sample]) as probe:
        losses = set()
        for _ in range(3):
            losses.add(probe.closures[0]().item())
            inputs += seen
    assert all(torch.equal(each, x) for each in inputs)
    assert len(inputs) == 3
    assert len(losses) == 1
    assert torch.equal(sample["x"], x)
    assert sample["names"] == ["a"]
