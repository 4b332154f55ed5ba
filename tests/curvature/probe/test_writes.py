"""What a training step writes to parameters, to its batch and to what hangs on the module does not outlast a probe."""

import copy

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn import functional as F

from lit_gelu.curvature.loss import hessian_operator
from lit_gelu.curvature.loss.parameters import ParameterLayout, displaced
from lit_gelu.curvature.probe.loss_probe import LossProbe
from lit_gelu.errors import ArgumentError


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


def test_the_loss_with_a_teacher_is_that_of_the_first_call():
    module = Teacher("no_grad")
    expected = copy.deepcopy(module).training_step(batch(), 0).item()
    with LossProbe(module, [batch()]) as probe:
        assert [probe.closures[0]().item() for _ in range(3)] == [expected] * 3


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
    with (
        pytest.raises(ArgumentError),
        LossProbe(module, [batch()]) as probe,
    ):
        probe.closures[0]()
    assert same(before, module)


def test_writing_where_a_caller_has_moved_the_parameters_is_put_back_to_where_they_were():
    class Clipping(Plain):
        def training_step(self, pair, batch_idx):
            with torch.no_grad():
                self.student.weight.mul_(0.5)
            raise ArithmeticError("after the write")

    module = Clipping()
    before = bits(module)
    with LossProbe(module, [batch()]) as probe:
        layout = ParameterLayout(probe.parameters)
        with displaced(layout) as move:
            move(torch.ones(layout.size))
            moved = bits(module)
            with pytest.raises(ArithmeticError):
                probe.closures[0]()
            assert same(moved, module)
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
    given = {"x": x.clone(), "y": y.clone(), "names": ["a"]}
    inputs = []
    with LossProbe(module, [given]) as probe:
        losses = set()
        for _ in range(3):
            losses.add(probe.closures[0]().item())
            inputs += seen
    assert all(torch.equal(each, x) for each in inputs)
    assert len(inputs) == 3
    assert len(losses) == 1
    assert torch.equal(given["x"], x)
    assert given["names"] == ["a"]
