"""Every key of timm's and transformers' own tables, as installed, is the same function under the same name here."""

import importlib

import pytest
import torch

from lit_gelu import activations

DTYPES = (torch.float32, torch.float64)
TIMM_TABLES = ("_ACT_FN_DEFAULT", "_ACT_FN_ME", "_ACT_LAYER_DEFAULT", "_ACT_LAYER_ME")

# Largest difference in units of the dtype's eps times max(1, |f|). They write the tanh form and exact GELU in their own
# order of operations, and 0.5 (1 + erf) has an absolute error of one eps times |x| where the value is small.
EPSILONS = 16.0
# What they approximate, with the reason; absolute.
LOOSER = {
    # Its constant is sqrt(2 / pi) rounded to ten digits.
    "gelu_fast": 3e-10,
    # It replaces exp(x) by exp(-1e-6) between -1e-6 and 0, so it is off by 1e-6 alpha_n there.
    "xielu": 1.1e-6,
    # torch's softplus is x above 20, which is 2e-9 too small; the root of it at 20 is off by a ninth of that.
    "sqrtsoftplus": 3e-10,
}


def _grid(dtype):
    steps = torch.linspace(-12, 12, 4801, dtype=dtype)
    special = torch.tensor([-1e4, -60.0, -1e-7, 1e-7, 19.9, 20.1, 60.0, 1e4], dtype=dtype)
    return torch.cat([steps, special])


def _same(name, theirs, ours, dtype):
    x = _grid(dtype)
    with torch.no_grad():
        expected, values = theirs(x.clone()), ours(x.clone())
    assert values.dtype == expected.dtype == dtype
    error = (values.double() - expected.double()).abs() / expected.double().abs().clamp(min=1.0)
    limit = max(EPSILONS * torch.finfo(dtype).eps, LOOSER.get(name, 0.0))
    assert error.max() <= limit, (name, x[error.argmax()], error.max())


@pytest.fixture(scope="module")
def timm_tables():
    return importlib.import_module("timm.layers.create_act")


@pytest.fixture(scope="module")
def transformers_tables():
    return importlib.import_module("transformers.activations")


def test_every_key_of_timm_is_registered_and_the_same(timm_tables):
    for table in TIMM_TABLES:
        for name, theirs in getattr(timm_tables, table).items():
            theirs = theirs() if isinstance(theirs, type) else theirs
            for dtype in DTYPES:
                ours = activations.create(name).to(dtype)
                theirs = theirs.to(dtype) if isinstance(theirs, torch.nn.Module) else theirs
                _same(name, theirs, ours, dtype)
                _same(name, theirs, lambda x, name=name: activations.functional.derivative(name, x, 0), dtype)


def test_every_key_of_transformers_is_registered_and_the_same(transformers_tables):
    keys = list(transformers_tables.ACT2CLS)
    assert set(keys) == set(transformers_tables.ACT2FN)
    for name in keys:
        for dtype in DTYPES:
            theirs = transformers_tables.ACT2FN[name].to(dtype)
            ours = activations.create(name, **_numbers_of(name, theirs)).to(dtype)
            _same(name, theirs, ours, dtype)


def _numbers_of(name, module):
    """xIELU's coefficients there are what 0.8 becomes in bfloat16 and back through a softplus."""
    if name != "xielu":
        return {}
    alpha_p = torch.nn.functional.softplus(module.alpha_p.double()).item()
    alpha_n = module.beta.item() + torch.nn.functional.softplus(module.alpha_n.double()).item()
    assert abs(alpha_p - 0.8) < 5e-3
    assert abs(alpha_n - 0.8) < 5e-3
    return {"alpha_p": alpha_p, "alpha_n": alpha_n, "beta": module.beta.item()}


def test_the_comparison_can_fail(timm_tables):
    """GELU's tanh form and the cubic spelling with another constant are told apart."""
    for dtype in DTYPES:
        with pytest.raises(AssertionError):
            _same("gelu", timm_tables.get_act_layer("gelu_tanh")(), activations.create("gelu").to(dtype), dtype)
