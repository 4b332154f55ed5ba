"""All ways to name an activation, and back."""

import contextlib
import copy
import functools
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from child_processes import PATIENCE
from torch import nn
from torch.nn import functional as F

from lit_gelu import activations
from lit_gelu.activations import (
    ActivationArgumentError,
    ActivationFacts,
    ActivationRegistry,
    ActivationSpec,
    ActivationSpecError,
    DuplicateActivationError,
    OpaqueActivationError,
    UnknownActivationError,
)
from lit_gelu.errors import LitGeluError


@pytest.fixture
def registry():
    return ActivationRegistry()


class Bend(nn.Module):
    """A module of a user's own."""

    def __init__(self, amount: float = 1.0, offset: float = 0.0) -> None:
        super().__init__()
        self.amount, self.offset = amount, offset

    def forward(self, x):
        return x + self.amount * (torch.sqrt(x * x + 1) - 1) / 2 + self.offset


def cube(x, scale=1.0):
    return scale * x**3


def cube_derivative(x, order, scale=1.0):
    return 3 * scale * x**2 if order == 1 else 6 * scale * x


TANH_FORMS = [
    "gelu(approximate='tanh')",
    "GELU(approximate='tanh')",
    "gelu_tanh",
    "gelu_new",
    {"name": "gelu", "approximate": "tanh"},
    {"name": "gelu", "init_args": {"approximate": "tanh"}},
    {"class_path": "torch.nn.GELU", "init_args": {"approximate": "tanh"}},
    "torch.nn.GELU(approximate='tanh')",
    ActivationSpec.of("gelu", approximate="tanh"),
    nn.GELU(approximate="tanh"),
    functools.partial(nn.GELU, approximate="tanh"),
    functools.partial(F.gelu, approximate="tanh"),
]


@pytest.mark.parametrize("form", TANH_FORMS, ids=str)
def test_every_form_names_the_same_activation(registry, form):
    module = registry.create(form)
    assert str(registry.spec_of(module)) == str(registry.resolve(form)) == "gelu(approximate='tanh')"
    x = torch.linspace(-5, 5, 101)
    assert torch.equal(module(x), F.gelu(x, approximate="tanh"))


@pytest.mark.parametrize("name", activations.list_activations())
def test_spec_of_what_was_created_is_the_canonical_spec(registry, name):
    spec = registry.resolve(name)
    assert registry.spec_of(registry.create(name)) == spec
    assert ActivationSpec.parse(str(spec)) == spec
    assert registry.resolve(spec) == spec
    assert registry.entry(name).registered_by.startswith("lit-gelu ")


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (nn.ReLU(inplace=True), "relu(inplace=True)"),
        (nn.LeakyReLU(0.2), "leaky_relu(negative_slope=0.2)"),
        (nn.PReLU(3, init=0.1), "prelu(init=0.1, num_parameters=3)"),
        (nn.Softplus(beta=2.0), "softplus(beta=2.0)"),
        (nn.Identity(), "identity"),
        (nn.CELU(0.5), "celu(alpha=0.5)"),
    ],
)
def test_spec_of_torch_modules(registry, module, text):
    spec = registry.spec_of(module)
    assert str(spec) == text
    assert registry.spec_of(registry.create(str(spec))) == spec


def test_arguments_at_the_call(registry):
    prototype = nn.PReLU()
    assert registry.create(prototype).weight is not prototype.weight
    assert registry.create("elu", alpha=0.5).alpha == 0.5
    assert registry.create(nn.ELU, alpha=0.5).alpha == 0.5
    with pytest.raises(ActivationArgumentError):
        registry.create("elu(alpha=1)", alpha=0.5)
    with pytest.raises(ActivationArgumentError):
        registry.resolve({"name": "gelu", "approximate": "tanh", "init_args": {"approximate": "none"}})
    with pytest.raises(ActivationArgumentError):
        registry.create(nn.ELU(), alpha=0.5)


def test_inplace_is_accepted_by_all_as_in_timm(registry):
    for name in registry.list_activations():
        assert isinstance(registry.create(name, inplace=True), nn.Module)
    assert registry.create("relu", inplace=True).inplace
    assert str(registry.resolve("gelu(inplace=True)")) == "gelu"


def test_an_unknown_name_lists_all_and_suggests_the_near(registry):
    for name in ("gleu", "Gelu_tan", "hardswich", "zzz"):
        with pytest.raises(UnknownActivationError) as caught:
            registry.create(name)
        message = str(caught.value)
        assert all(registered in message for registered in registry.list_activations())
        assert ("Did you mean" in message) == (name != "zzz")
        assert isinstance(caught.value, (KeyError, ValueError))
        assert not message.startswith(("'", '"'))


def test_a_wrong_argument_is_refused(registry):
    wrong = "relu(slope=1) identity(slope=1) gelu_tanh(approximate='none') elu(alpha='1') elu(alpha=True)"
    for spec in [*wrong.split(), "swish(learnable=1)", "torch.nn.ELU(beta=1)"]:
        with pytest.raises(ActivationArgumentError):
            registry.create(spec)


@pytest.mark.parametrize(
    "spec",
    [3, None, {}, {"name": 3}, {"name": "gelu", "class_path": "torch.nn.GELU"}, {"name": "gelu", "init_args": 3},
     {"class_path": "GELU"}, {"class_path": "torch.nn.Nope"}, {"class_path": "no_such_package.Act"},
     {"class_path": "torch.nn.GELU", "approximate": "tanh"}, "torch.Tensor", "torch.nn.no.such", int],
    ids=str,
)  # fmt: skip
def test_what_names_no_activation_is_refused(registry, spec):
    with pytest.raises(ActivationSpecError):
        registry.create(spec)


def test_registering_a_class(registry):
    assert registry.register("bend", aliases=("bended",))(Bend) is Bend
    assert str(registry.spec_of(registry.create("bended(amount=2)"))) == "bend(amount=2)"
    assert str(registry.spec_of(Bend(offset=0.5))) == "bend(offset=0.5)"
    assert str(registry.resolve(Bend)) == "bend"
    assert registry.info("bend").registered_by.endswith("Bend")
    assert registry.info("bend").monotone


def test_registering_a_function_with_its_derivative(registry):
    facts = ActivationFacts("scale x^3", smoothness=float("inf"))
    registry.register("cube", derivative=cube_derivative, facts=facts)(cube)
    x = torch.linspace(-2, 2, 9, dtype=torch.float64)
    module = registry.create("cube(scale=2.0)")
    assert torch.equal(module(x), 2 * x**3)
    assert str(registry.spec_of(module)) == "cube(scale=2.0)"
    assert str(registry.resolve(cube, scale=3)) == "cube(scale=3)"
    derivative = activations.functional.derivative
    assert torch.equal(derivative(module, x, 2, registry=registry), 12 * x)
    assert registry.info("cube").formula == "scale x^3"


def test_a_taken_name_says_who_has_it(registry):
    registry.register("cube")(cube)
    for name, aliases in (("cube", ()), ("relu", ()), ("other", ("hardswish",))):
        with pytest.raises(DuplicateActivationError):
            registry.register(name, aliases=aliases)(Bend)
    assert "other" not in registry


def test_override_takes_the_place_and_the_aliases_follow(registry):
    registry.register("identity", override=True)(Bend)
    assert isinstance(registry.create("linear"), Bend)
    assert registry.spec_of(nn.Identity()).opaque
    registry.register("hardswish", override=True)(nn.Softsign)
    assert isinstance(registry.create("hardswish"), nn.Softsign)
    assert isinstance(registry.create("hard_swish"), nn.Hardswish)


def test_what_cannot_be_registered(registry):
    calls = [lambda target=target: registry.register("thing")(target) for target in (nn.ReLU(), 3, "relu", dict)]
    calls += [lambda: registry.register(cube), lambda: registry.register("thing", aliases="bent")]
    calls += [lambda: registry.register("thing")(functools.partial(Bend, 2.0)), lambda: registry.spec_of("gelu")]
    for call in calls:
        with pytest.raises(ActivationSpecError):
            call()
    with pytest.raises(ActivationArgumentError):
        registry.register("thing", facts={"smoothness": 0})
    assert "thing" not in registry


def test_a_name_that_is_short_for_a_spec_follows_an_override_of_the_name_in_it(registry):
    with registry.scope():
        registry.register("gelu", override=True)(nn.Softsign)
        with pytest.raises(ActivationArgumentError):
            registry.create("gelu_tanh")
        registry.register("gelu", override=True)(nn.GELU)
        assert registry.create("gelu_tanh").approximate == "tanh"
    assert str(registry.resolve("gelu_tanh")) == "gelu(approximate='tanh')"


def test_what_was_never_registered_is_opaque(registry):
    for thing in (
        Bend,
        Bend(),
        cube,
        lambda x: x,
        functools.partial(cube, scale=2.0),
        {"class_path": "torch.nn.Softsign"},
    ):
        module = registry.create(thing)
        spec = registry.spec_of(module)
        assert spec.opaque
        assert ActivationSpec.parse(str(spec)) == spec
        assert module(torch.ones(2)).shape == (2,)
        with pytest.raises(OpaqueActivationError):
            registry.create(spec)
        with pytest.raises(OpaqueActivationError):
            registry.create(str(spec))


def test_scope_undoes_registrations(registry):
    before = registry.list_activations()
    with contextlib.suppress(RuntimeError), registry.scope() as scoped:
        registry.register("cube")(cube)
        registry.register("gelu", override=True)(Bend)
        with registry.scope():
            registry.register("cube", override=True)(Bend)
            assert isinstance(registry.create("cube"), Bend)
        assert registry.create("cube").function is cube
        assert scoped is registry
        assert isinstance(registry.create("gelu_exact"), Bend)
        raise RuntimeError
    assert registry.list_activations() == before
    assert isinstance(registry.create("gelu"), nn.GELU)


def test_pickle_and_deepcopy(registry):
    registry.register("cube")(cube)
    for twin in (pickle.loads(pickle.dumps(registry)), copy.deepcopy(registry)):
        assert twin.list_activations() == registry.list_activations()
        assert [row.modules for row in twin.entries()] == [row.modules for row in registry.entries()]
        assert str(twin.spec_of(twin.create("cube(scale=2)"))) == "cube(scale=2)"
        twin.register("only_there")(Bend)
        assert "only_there" not in registry


def test_the_default_registry_stays_one():
    with activations.registry.scope():
        activations.register("cube")(cube)
        data = pickle.dumps(activations.registry)
        assert copy.deepcopy(activations.registry) is activations.registry
    assert "cube" not in activations.registry
    with activations.registry.scope():
        assert pickle.loads(data) is activations.registry
        assert activations.registry.create("cube").function is cube


@pytest.mark.parametrize("name", activations.list_activations())
def test_modules_are_copied_and_pickled(name):
    module = activations.create(name).eval()
    x = torch.linspace(-3, 3, 8)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert activations.spec_of(twin) == activations.spec_of(module)
        assert torch.equal(twin(x), module(x))


def test_many_threads_register_and_create(registry):
    start = threading.Barrier(8, timeout=PATIENCE)

    def work(number):
        start.wait()
        for turn in range(20):
            registry.register(f"cube_{number}_{turn}")(cube)
            assert str(registry.spec_of(registry.create(f"cube_{number}_{turn}"))) == f"cube_{number}_{turn}"
            assert registry.create("gelu") is not None
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert len(registry.list_activations("cube_*")) == 160


LATE = (
    *("swish(beta=1e999)", "swish(beta=-1.0)", "gaussian_gelu(sigma=0)", "gelu(approximate='x')"),
    *("clipped_gelu(min=2.0, max=1.0)", "swish(learnable=True, channels=0)"),
)


def test_values_are_checked_when_the_spec_is_read(registry):
    for spec in LATE:
        for read in (registry.resolve, registry.create, registry.info):
            with pytest.raises(ActivationArgumentError):
                read(spec)


def test_reading_a_spec_draws_no_random_number_and_asks_for_no_memory(registry):
    state = torch.get_rng_state()
    for name in registry.list_activations():
        registry.resolve(name)
    assert str(registry.resolve("prelu(num_parameters=16777216)")) == "prelu(num_parameters=16777216)"
    assert torch.equal(torch.get_rng_state(), state)


MALFORMED = ["..a", "a..b", ".a", "a.", ".", "os.path", "sys.path", "a" * 100_000, "a." * 50_000, "gelu(" * 20_000,
             "gelu(a=" + "-" * 3000 + "1)", "gelu(a=" + "(" * 50 + ")" * 50 + ")", f"elu(alpha=0x{'f' * 5000})",
             f"elu({'a' * 100_000}=1)", f"elu(alpha='{'a' * 100_000}')", {"name": "elu", "alpha": 10**400},
             {"a" * 100_000: 1}, {"class_path": "a" * 100_000}, {"name": "gelu", 3: 1, "init_args": {3: 1}}
            ]  # fmt: skip


@pytest.mark.parametrize("index", range(len(MALFORMED)))
def test_a_malformed_spec_is_refused_in_few_words(index, registry):
    for trusted in (True, False):
        with pytest.raises(LitGeluError) as caught:
            registry.resolve(MALFORMED[index], trusted=trusted)
        assert len(str(caught.value)) < 2000
