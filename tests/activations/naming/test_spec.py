"""The grammar of specs, over open-ended inputs."""

import keyword
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_gelu.activations import ActivationSpec, ActivationSpecError, OpaqueActivationError

names = st.from_regex(r"[a-z_][a-z0-9_]{0,12}", fullmatch=True)
keywords = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).filter(
    lambda text: not keyword.iskeyword(text) and text not in {"name", "class_path", "init_args"}
)
scalars = st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False) | st.text()
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6)
specs = st.builds(
    lambda name, arguments: ActivationSpec(name, tuple(arguments.items())),
    names,
    st.dictionaries(keywords, values, max_size=4),
)


@given(specs)
def test_text_parses_back_to_the_same_spec(spec):
    parsed = ActivationSpec.parse(str(spec))
    assert parsed == spec
    assert str(parsed) == str(spec)
    assert hash(parsed) == hash(spec)
    for (_, before), (_, after) in zip(spec.kwargs, parsed.kwargs, strict=True):
        assert type(before) is type(after)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused_by_name(text):
    try:
        spec = ActivationSpec.parse(text)
    except ActivationSpecError:
        return
    assert ActivationSpec.parse(str(spec)) == spec


@given(names, st.text(alphabet="abc=,()'\"[]-.0123 \n#", max_size=25))
def test_any_argument_list_is_read_or_refused_by_name(name, arguments):
    try:
        spec = ActivationSpec.parse(f"{name}({arguments})")
    except ActivationSpecError:
        return
    assert ActivationSpec.parse(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" GELU ( ) ", "gelu"),
        ("leaky_relu(negative_slope = -.5)", "leaky_relu(negative_slope=-0.5)"),
        ("swish(learnable=True, beta=1.5)", "swish(beta=1.5, learnable=True)"),
        ("f(a=[1, (2, 'x,)')], b=None)", "f(a=(1, (2, 'x,)')), b=None)"),
        ("f(a=-inf)", "f(a=-inf)"),
        ("f(a=+2, b=-3)", "f(a=2, b=-3)"),
        ("opaque:my.module.Act(alpha=1)", "opaque:my.module.Act(alpha=1)"),
    ],
)
def test_forms_that_are_read(text, expected):
    assert str(ActivationSpec.parse(text)) == expected


@pytest.mark.parametrize(
    "text",
    ["", "gelu(", "gelu)", "gelu(tanh)", "gelu(1)", "gelu(**x)", "gelu(a=b)", "gelu(a=1)(b=2)", "gelu(a=1, a=2)",
     "ge lu", "1elu", "gelu(a=f())", "gelu(a=nan)", "gelu(lambda=1)", "gelu(name='x')", "gelu(a={})", "gelu(a=1j)",
     "gelu(a=b'x')", "gelu(a=True+1)", "gelu(a=-True)", "gelu(a=+False)", "gelu(a=~1)",
     "gelu\0", f"gelu(a={'(' * 5000})", "gélu"],
)  # fmt: skip
def test_forms_that_are_refused(text):
    with pytest.raises(ActivationSpecError):
        ActivationSpec.parse(text)


def test_numpy_scalars_become_plain_numbers():
    spec = ActivationSpec.of("elu", alpha=np.float64(0.5))
    assert str(spec) == "elu(alpha=0.5)"
    assert type(spec.arguments["alpha"]) is float


@pytest.mark.parametrize("value", [math.nan, object(), {"a": 1}, 1j, b"x"])
def test_values_that_are_no_plain_data_are_refused(value):
    with pytest.raises(ActivationSpecError):
        ActivationSpec.of("elu", alpha=value)


def test_an_opaque_spec_is_refused_for_checkpoints_with_the_remedy():
    spec = ActivationSpec("my_package.Bend", opaque=True)
    assert ActivationSpec.parse(str(spec)) == spec
    with pytest.raises(OpaqueActivationError):
        spec.for_checkpoint()


@pytest.mark.parametrize("name", ["", "my act", "mymod.Act()", "mymod.Act\n"])
def test_an_opaque_name_has_no_spaces_and_no_parentheses(name):
    with pytest.raises(ActivationSpecError):
        ActivationSpec(name, opaque=True)


def test_tuples_too_deep_and_integers_too_long_are_refused():
    for text in (f"f(a={'(' * 17}1{',)' * 17})", f"f(a={'-' * 17}3)", f"f(a={2**1000})"):
        with pytest.raises(ActivationSpecError):
            ActivationSpec.parse(text)
    for text in (f"f(a={'(' * 16}1{',)' * 16})", f"f(a={1 - 2**1000})"):
        assert str(ActivationSpec.parse(text)) == text
