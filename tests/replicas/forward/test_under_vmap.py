"""Functions with a vmap of their own, called at once, against torch's own way to call them."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from lit_gelu.replicas import NotReplicableError
from lit_gelu.replicas.forward.rules import CrossEntropyUnderVmap, EachUnderVmap, LinearUnderVmap
from lit_gelu.replicas.forward.under_vmap import TensorPlaces, mapped_call, part_of


class Counted(LinearUnderVmap):
    """How often torch's own way was gone."""

    calls = 0

    @classmethod
    def apply(cls, *arguments):
        cls.calls += 1
        return super().apply(*arguments)


@pytest.mark.parametrize("dims", [(0, 0), (1, 0), (None, 0), (0, None)], ids=str)
def test_a_mapped_call_is_that_of_torch(dims):
    weight, inputs = torch.randn(3, 20, 30), torch.randn(3, 3, 30)
    one = tuple(
        tensor[0] if dim is None else tensor for tensor, dim in zip((weight, inputs), (dims[1], dims[0]), strict=True)
    )
    in_dims = (dims[1], dims[0])
    before = Counted.calls
    at_once = torch.vmap(lambda w, x: mapped_call(Counted, x, w, None), in_dims)(*one)
    assert Counted.calls == before
    assert torch.equal(at_once, torch.vmap(lambda w, x: LinearUnderVmap.apply(x, w, None), in_dims)(*one))
    torch.testing.assert_close(at_once, torch.vmap(lambda w, x: x @ w.T, in_dims)(*one))


def test_other_nestings_go_torchs_way():
    inputs, weight = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 6, 5)
    step = torch.vmap(torch.vmap(lambda x, w: mapped_call(EachUnderVmap, functional.linear, x, w)))
    torch.testing.assert_close(step(inputs, weight), inputs @ weight.transpose(-1, -2))
    assert torch.equal(mapped_call(EachUnderVmap, torch.exp, inputs), inputs.exp())


def test_after_an_error_torch_maps_as_before():
    def fails(tensor):
        raise ZeroDivisionError

    tensor = torch.arange(3.0)
    with pytest.raises(ZeroDivisionError):
        torch.vmap(lambda own: mapped_call(EachUnderVmap, fails, own))(tensor)
    assert torch.equal(torch.vmap(lambda own: mapped_call(EachUnderVmap, torch.exp, own))(tensor), tensor.exp())


@pytest.mark.parametrize("left_out", [0, 3], ids=["all count", "three are left out"])
def test_cross_entropy_and_its_gradient_are_those_of_each_replica(left_out):
    logits, labels = torch.randn(4, 30, 10, requires_grad=True), torch.randint(10, (4, 30))
    labels[1, :left_out] = -100
    losses = torch.vmap(lambda own, its: mapped_call(CrossEntropyUnderVmap, own, its))(logits, labels)
    (gradients,) = torch.autograd.grad(losses.sum(), logits)
    for own, its, loss, gradient in zip(logits.detach(), labels, losses, gradients, strict=True):
        alone = own.requires_grad_()
        torch.testing.assert_close(loss, functional.cross_entropy(alone, its), rtol=1e-6, atol=0)
        assert torch.equal(gradient, torch.autograd.grad(functional.cross_entropy(alone, its), alone)[0])


class Shared(nn.Module):
    """A weight under two names, and a buffer."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.register_buffer("count", torch.zeros(()))


def tensors_of(net, names):
    tensors = dict([*net.named_parameters(), *net.named_buffers()])
    return [tensors[name] for name in names]


def test_tensors_are_held_wherever_they_are_and_then_no_longer():
    net = Shared()
    before, places = dict(net.state_dict(keep_vars=True)), TensorPlaces(net, ", or do not")
    others = [torch.full_like(before[name], 2.0) for name in places.names]
    with places.holding(others):
        assert net.first.weight is net.second.weight is others[places.names.index("first.weight")]
        net.count += 1  # in place: the tensor's owner sees it
    assert others[places.names.index("count")] == 3
    assert all(net.state_dict(keep_vars=True)[name] is tensor for name, tensor in before.items())


def test_some_tensors_are_held_in_a_module_under_several_names():
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net.append(net[0])
    before, other = dict(net.state_dict(keep_vars=True)), torch.ones(3, 3)
    places = TensorPlaces(net, "", {"0.weight"})
    with places.holding([other]):
        assert net[0].weight is net[2].weight is other
        assert net[1].weight is before["1.weight"]
    assert all(net.state_dict(keep_vars=True)[name] is tensor for name, tensor in before.items())


def test_a_tensor_that_is_assigned_is_not_lost_in_silence():
    net = Shared()
    places, count = TensorPlaces(net, ", or do not"), net.count
    others = [tensor.detach().clone() for tensor in tensors_of(net, places.names)]
    with pytest.raises(NotReplicableError, match=r"'count'.*in place.*, or do not"), places.holding(others):
        net.count = net.count + 1
    assert net.count is count


def test_data_that_become_anothers_are_noticed():
    net = Shared()
    places = TensorPlaces(net, ", or do not")
    tensors = [tensor.detach().clone() for tensor in tensors_of(net, places.names)]
    before = [tensor.data_ptr() for tensor in tensors]
    tensors[0].data.mul_(2)
    places.check_addresses(tensors, before)
    tensors[0].data = tensors[0] * 2
    with pytest.raises(NotReplicableError, match=rf"'{places.names[0]}'.*in place.*, or do not"):
        places.check_addresses(tensors, before)


@pytest.mark.parametrize("dim", [0, 1])
def test_what_a_mapped_function_leaves_is_each_replicas_own(dim):
    left, given, same = [], torch.randn(3, 3), torch.randn(2)
    torch.vmap(lambda own: left.append(own * 2) or own, dim)(given)
    for replica in range(3):
        assert torch.equal(part_of(left[0], replica), given.select(dim, replica) * 2)
        assert torch.equal(part_of(same, replica), same)
        assert part_of(same, replica) is not same
