"""Module classes of users: what their constructors were given, whatever became of it."""

import copy
import functools
import inspect
import io
import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.functional import derivative
from lit_gelu.surgery import find_sites, swap


def cube(x, scale=1.0):
    return scale * x**3


class Adds:
    """A callable object, which is no module."""

    def __init__(self, offset):
        self.offset = offset

    def __call__(self, x):
        return x + self.offset


class Learned(nn.Module):
    """Its argument is the start of a parameter of the same name."""

    def __init__(self, a: float = 1.0) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(float(a)))

    def forward(self, x):
        return self.a * torch.sin(x)


class Logarithmic(nn.Module):
    """Its parameter has the argument's name and another meaning."""

    def __init__(self, a: float = 1.0) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(math.log(a)))

    def forward(self, x):
        return self.a.exp() * torch.sin(x)


class Buffered(nn.Module):
    """Its argument is a buffer."""

    def __init__(self, a: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("a", torch.tensor(float(a)))

    def forward(self, x):
        return self.a * torch.sin(x)


class Renamed(nn.Module):
    """Nothing of it is called as its argument."""

    def __init__(self, a: float = 1.0) -> None:
        super().__init__()
        self._scale = float(a)

    def forward(self, x):
        return self._scale * torch.sin(x)


class Doubled(nn.Module):
    """It has an attribute of its argument's name, with another value."""

    def __init__(self, a: float = 1.0) -> None:
        super().__init__()
        self.a = 2 * a

    def forward(self, x):
        return self.a / 2 * torch.sin(x)


class Plain(nn.Module):
    """It keeps its argument as it is."""

    def __init__(self, a: float = 1.0) -> None:
        super().__init__()
        self.a = a

    def forward(self, x):
        return self.a * torch.sin(x)


CLASSES = [Learned, Logarithmic, Buffered, Renamed, Doubled, Plain]


@pytest.fixture
def registry():
    return ActivationRegistry()


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
class TestEveryKindOfClass:
    @pytest.fixture(autouse=True)
    def registered(self, cls, registry):
        registry.register("own")(cls)

    def test_created_and_direct_instances_say_what_they_were_built_with(self, cls, registry):
        for module in (registry.create("own(a=2.5)"), registry.create("own", a=2.5), cls(2.5), cls(a=2.5)):
            assert str(registry.spec_of(module)) == "own(a=2.5)"
            rebuilt = registry.create(registry.spec_of(module))
            assert torch.equal(rebuilt(torch.ones(3)), module(torch.ones(3)))
        assert str(registry.spec_of(cls())) == "own"
        assert set(cls(2.5).state_dict()) <= {"a"}
        assert registry.info("own(a=2.5)").derivative_at_zero == pytest.approx(2.5)

    def test_copies_say_the_same(self, cls, registry):
        module = cls(2.5)
        stream = io.BytesIO()
        torch.save(module, stream)
        stream.seek(0)
        copies = [
            copy.copy(module),
            copy.deepcopy(module),
            pickle.loads(pickle.dumps(module)),
            torch.load(stream, weights_only=False),
        ]
        assert [str(registry.spec_of(twin)) for twin in copies] == ["own(a=2.5)"] * 4

    def test_its_derivative_is_that_of_the_module_as_it_is_now(self, cls, registry):
        closed = ActivationRegistry()
        closed.register("own", derivative=lambda x, order, a=1.0: a * (x.cos() if order == 1 else -x.sin()))(cls)
        module = cls(2.5).double()
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.data.fill_(math.log(4.0) if cls is Logarithmic else 4.0)
        scale = 4.0 if any(True for _ in (*module.parameters(), *module.buffers())) else 2.5
        x = torch.linspace(-2, 2, 9, dtype=torch.float64)
        for lookup in (registry, closed):
            for order, expected in ((0, x.sin()), (1, x.cos()), (2, -x.sin())):
                values = derivative(module, x, order, registry=lookup).detach()
                torch.testing.assert_close(values, scale * expected, rtol=1e-13, atol=1e-14)
        assert str(registry.spec_of(module)) == "own(a=2.5)"


def test_modules_of_a_function_whose_name_another_took_are_not_of_the_new_one():
    registry = ActivationRegistry()
    registry.register("bent")(cube)
    net = nn.Sequential(registry.create("bent(scale=2.0)"))
    for copied in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert str(registry.spec_of(copied[0])) == "bent(scale=2.0)"
    registry.register("bent", override=True)(lambda x, scale=1.0: torch.sin(scale * x))
    assert registry.entry_of(net[0]) is None
    assert registry.spec_of(net[0]).opaque
    x = torch.tensor([2.0])
    assert torch.equal(derivative(net[0], x, 0, registry=registry), net(x))
    swap(net, {"0": "bent"}, registry=registry)
    assert torch.equal(net(x), torch.sin(x))


def test_deep_copies_of_callable_objects_are_what_they_are_copies_of():
    registry, other = ActivationRegistry(), ActivationRegistry()
    registry.register("eightfold")(functools.partial(cube, scale=8.0))
    registry.register("adds")(Adds(torch.tensor([1.0, 1.0, 1.0])))
    other.register("adds")(Adds(2.0))
    for name in ("eightfold", "adds"):
        module = registry.create(name)
        for copied in (module, copy.copy(module), copy.deepcopy(module)):
            assert registry.entry_of(copied).name == name
            assert other.entry_of(copied) is None
    assert registry.entry_of(pickle.loads(pickle.dumps(module))) is None  # a pickle holds another object


def test_an_attribute_that_is_the_argument_may_be_assigned(registry):
    registry.register("own")(Plain)
    module = Plain(2.0)
    module.a = 3.0
    assert str(registry.spec_of(module)) == "own(a=3.0)"
    module.a = np.ones(3)
    assert registry.spec_of(module).opaque
    module.a = nn.Parameter(torch.tensor(3.0))
    assert str(registry.spec_of(module)) == "own(a=2.0)"
    del module.a
    assert registry.spec_of(module).opaque


class Keywords(nn.Module):
    """Arguments of every kind."""

    def __init__(self, first=1, /, second=2.0, *rest, third="x", sizes=(1, 2), device=None, **others):
        super().__init__()
        self.content = first, second, rest, third, tuple(sizes), device, others

    def forward(self, x):
        return x


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: Keywords(), "own"),
        (lambda: Keywords(1, 3), "own(second=3)"),
        (lambda: Keywords(second=3, third="y"), "own(second=3, third='y')"),
        (lambda: Keywords(sizes=[3, 4], device="cpu", dtype=torch.float32), "own(sizes=(3, 4))"),
        (lambda: Keywords(7), None),
        (lambda: Keywords(1, 2.0, 5), None),
        (lambda: Keywords(more=1), None),
        (lambda: Keywords(second=torch.tensor(2.0)), None),
        (lambda: Keywords(third=math.sin), None),
        (lambda: Keywords(second=math.nan), None),
        (lambda: Keywords(second="a word"), None),
    ],
)
def test_arguments_of_every_kind(registry, build, expected):
    registry.register("own")(Keywords)
    spec = registry.spec_of(build())
    assert spec.opaque if expected is None else str(spec) == expected


def test_a_class_keeps_its_signature_and_documentation_and_is_wrapped_once():
    class Stub(nn.Module):
        def __init__(self, a: float = 1.0) -> None:
            """Build it."""
            super().__init__()

    before = inspect.signature(Stub)
    first, second = ActivationRegistry(), ActivationRegistry()
    assert first.register("own")(Stub) is Stub
    wrapped = Stub.__init__
    second.register("other")(Stub)
    first.register("own", override=True)(Stub)
    assert Stub.__init__ is wrapped
    assert inspect.signature(Stub) == before
    assert Stub.__init__.__doc__ == "Build it."
    module = Stub(2.0)
    assert (str(first.spec_of(module)), str(second.spec_of(module))) == ("own(a=2.0)", "other(a=2.0)")


def test_a_subclass_is_known_by_its_own_constructor(registry):
    class Base(nn.Module):
        def __init__(self, a: float = 1.0) -> None:
            super().__init__()
            self._a = a

    registry.register("base")(Base)

    class Same(Base):
        pass

    class Other(Base):
        def __init__(self, b: float = 3.0) -> None:
            super().__init__(b + 1)

    assert registry.spec_of(Same(2.0)).opaque
    registry.register("same")(Same)
    registry.register("other")(Other)
    specs = [str(registry.spec_of(module)) for module in (Base(2.0), Same(2.0), Other(2.0))]
    assert specs == ["base(a=2.0)", "same(a=2.0)", "other(b=2.0)"]


def test_an_instance_from_before_is_read_by_plain_attributes_or_opaque(registry):
    class Kept(nn.Module):
        def __init__(self, a: float = 1.0) -> None:
            super().__init__()
            self.a = a

    class Hidden(nn.Module):
        def __init__(self, a: float = 1.0) -> None:
            super().__init__()
            self.b = nn.Parameter(torch.tensor(a))

        def forward(self, x):
            return self.b * torch.sin(x)

    kept, hidden = Kept(2.0), Hidden(2.0)
    registry.register("kept")(Kept)
    registry.register("hidden")(Hidden)
    assert str(registry.spec_of(kept)) == "kept(a=2.0)"
    assert registry.spec_of(hidden).opaque
    assert [site.spec.opaque for site in find_sites(nn.Sequential(kept, hidden), registry=registry)] == [False, True]
    torch.testing.assert_close(derivative(hidden, torch.zeros(1), registry=registry), torch.tensor([2.0]))


def test_classes_of_torch_are_left_as_they_are(registry):
    before = nn.Hardtanh.__init__
    registry.register("hard_tanh")(nn.Hardtanh)
    assert nn.Hardtanh.__init__ is before
    assert str(registry.spec_of(registry.create("hard_tanh(max_val=3.0)"))) == "hard_tanh(max_val=3.0)"
    assert str(registry.resolve(nn.Hardtanh, max_val=3.0)) == "hard_tanh(max_val=3.0)"
    assert registry.spec_of(nn.Hardtanh(0.0, 3.0)).opaque  # it does not keep two of its arguments


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_torchscript_compile_and_the_meta_device_take_a_noted_module(registry):
    registry.register("own")(Learned)
    module, x = Learned(2.0), torch.ones(3)
    assert torch.equal(torch.jit.script(module)(x), module(x))
    assert torch.equal(torch.compile(module, backend="eager")(x), module(x))
    with torch.device("meta"):
        assert str(registry.spec_of(Learned(2.0))) == "own(a=2.0)"
