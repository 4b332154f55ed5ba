"""Specs out of files: registered names are looked up, and nothing is imported or called."""

import sys

import pytest
import torch
from torch import nn

from lit_gelu import activations
from lit_gelu.activations import (
    ActivationArgumentError,
    ActivationRegistry,
    ActivationSpec,
    ActivationSpecError,
    OpaqueActivationError,
    StoredSpecError,
    UnknownActivationError,
    building_from_file,
)

MODULE = "module_that_a_file_names"


@pytest.fixture
def marker(tmp_path, monkeypatch):
    """A module on the path that leaves a file when it is imported, and a function that leaves it when called."""
    path = tmp_path / "ran"
    code = f"import pathlib\npathlib.Path({str(path)!r}).touch()\nfrom torch import nn\nclass Thing(nn.Module): pass\n"
    (tmp_path / f"{MODULE}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    yield path
    sys.modules.pop(MODULE, None)


def hostile(path):
    """Specs that would import or call, in every form that a file can hold."""
    call = f"__import__('pathlib').Path({str(path)!r}).touch()"
    return [
        f"{MODULE}.Thing",
        f"{MODULE.upper()}.Thing",
        f"  {MODULE}.Thing ()",
        {"class_path": f"{MODULE}.Thing"},
        {"class_path": f"{MODULE}.Thing", "init_args": {}},
        {"class_path": "builtins.eval", "init_args": {"source": call}},
        {"name": f"{MODULE}.Thing"},
        {"name": {"class_path": f"{MODULE}.Thing"}},
        {"name": "gelu", "init_args": {"approximate": {"class_path": f"{MODULE}.Thing"}}},
        {"class_path": {"class_path": f"{MODULE}.Thing"}},
        {"class_path": ["builtins.eval"]},
        f"opaque:{MODULE}.Thing",
        f"sympy.lambdify(expr={call!r}, dummify=True)",
        f"torch.save(f={str(path)!r})",
        f"builtins.open(mode='w', file={str(path)!r})",
        f"os.system(command='touch {path}')",
        f"torch.hub.os.system(command='touch {path}')",
        f"pathlib.Path.touch(self={str(path)!r})",
        f"{MODULE}\uff0eThing",  # a full stop that is none
        f"{MODULE}\u2024Thing",
        "\U0001d454\U0001d452\U0001d459\U0001d462",  # "gelu" in mathematical letters
        "g\u0435lu",  # a Cyrillic e
        f"..{MODULE}.Thing",
        f"lit_gelu.activations.families.{MODULE}.Thing",
        "torch.nn.Softsign",  # imported, a module, and registered by nobody
        "lit_gelu.tasks.MNISTClassifier",
        f"gelu(approximate={MODULE}.Thing)",
        f"gelu(approximate=__import__({MODULE!r}))",
        "__import__('os').system('true')",
        b"gelu",
        [f"{MODULE}.Thing"],
        None,
        3,
        {},
    ]


@pytest.mark.parametrize("index", range(len(hostile(""))))
def test_a_hostile_spec_is_refused_and_nothing_runs(index, marker):
    spec, before = hostile(marker)[index], set(sys.modules)
    errors = (ActivationSpecError, UnknownActivationError, ActivationArgumentError, OpaqueActivationError)
    for read in (activations.resolve, activations.create):
        with pytest.raises(errors) as caught:
            read(spec, trusted=False)
        assert str(caught.value)
    with building_from_file(), pytest.raises(errors):
        activations.create(spec)
    assert not marker.exists()
    assert MODULE not in sys.modules
    assert {name for name in set(sys.modules) - before if "sympy" in name} == set()


def test_the_same_spec_runs_where_code_gives_it(marker):
    """The exploits above are real: what is refused out of a file is what code may do."""
    assert type(activations.create(f"{MODULE}.Thing")).__name__ == "Thing"
    assert marker.exists()


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("gelu", "gelu"),
        ("GELU(approximate='tanh')", "gelu(approximate='tanh')"),
        ("quick_gelu", "gelu(approximate='sigmoid')"),
        ("gelu_new", "gelu(approximate='tanh')"),
        ({"name": "swish", "beta": 1.5, "learnable": True}, "swish(beta=1.5, learnable=True)"),
        ({"name": "gelu", "init_args": {"approximate": "tanh"}}, "gelu(approximate='tanh')"),
        ({"class_path": "torch.nn.GELU"}, "gelu"),
        ({"class_path": "torch.nn.modules.activation.ELU", "init_args": {"alpha": 0.5}}, "elu(alpha=0.5)"),
        ("torch.nn.functional.silu", "silu"),
        ("lit_gelu.activations.modules.SigmoidGELU", "gelu(approximate='sigmoid')"),
        (ActivationSpec.of("elu", alpha=0.5), "elu(alpha=0.5)"),
    ],
)
def test_what_honest_files_hold_is_read(spec, expected):
    assert str(activations.resolve(spec, trusted=False)) == expected
    assert str(activations.spec_of(activations.create(spec, trusted=False))) == expected
    with building_from_file():
        assert str(activations.resolve(spec)) == expected


def test_a_registered_class_of_a_user_is_read_by_name_and_by_path(monkeypatch):
    class Bend(nn.Module):
        def __init__(self, amount: float = 1.0) -> None:
            super().__init__()
            self.amount = amount

        def forward(self, x):
            return self.amount * x

    monkeypatch.setattr(sys.modules[__name__], "Bend", Bend, raising=False)
    registry = ActivationRegistry()
    with pytest.raises(StoredSpecError):
        registry.resolve(f"{__name__}.Bend", trusted=False)
    registry.register("bend")(Bend)
    assert str(registry.resolve("bend(amount=2.0)", trusted=False)) == "bend(amount=2.0)"
    assert str(registry.resolve(f"{__name__}.Bend(amount=2.0)", trusted=False)) == "bend(amount=2.0)"


def test_a_lazy_module_is_not_asked_for_what_it_would_import(marker, monkeypatch):
    lazy = type(sys)("lazy_package")
    lazy.__getattr__ = lambda name: __import__(MODULE)
    monkeypatch.setitem(sys.modules, "lazy_package", lazy)
    with pytest.raises(StoredSpecError):
        activations.registry.resolve("lazy_package.Thing", trusted=False)
    assert not marker.exists()


def test_while_a_module_is_built_from_a_file_code_may_still_give_what_it_likes():
    with building_from_file(specs=["torch.nn.Softsign", {"class_path": "torch.nn.Softsign"}]):
        for spec in ("torch.nn.Softsign", {"class_path": "torch.nn.Softsign"}, nn.Softsign, nn.Softsign(), torch.cos):
            assert isinstance(activations.create(spec), nn.Module)
        with pytest.raises(StoredSpecError):
            activations.create("torch.nn.Softshrink")
    assert isinstance(activations.create("torch.nn.Softshrink"), nn.Module)
