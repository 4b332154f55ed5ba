"""The oracle itself: Taylor arithmetic against mpmath's own numerical differentiation."""

import mpmath
import pytest
from activation_oracles import CASES


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.name in {"gelu", "gaussian_gelu", "swish", "mish", "tanh", "softplus"}], ids=str
)
@pytest.mark.parametrize("x", [-6.5, -0.75, 0.1, 3.0])
def test_derivatives_equal_numerical_ones(case, x):
    plain = {
        "gelu": lambda t, approximate="none": (
            t
            * {
                "none": mpmath.ncdf(t),
                "tanh": (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (t + mpmath.mpf("0.044715") * t**3))) / 2,
                "sigmoid": 1 / (1 + mpmath.exp(-mpmath.mpf("1.702") * t)),
            }[approximate]
        ),
        "gaussian_gelu": lambda t, mu, sigma: t * mpmath.ncdf(t, mu, sigma),
        "swish": lambda t, beta: t / (1 + mpmath.exp(-beta * t)),
        "mish": lambda t: t * mpmath.tanh(mpmath.log(1 + mpmath.exp(t))),
        "tanh": mpmath.tanh,
        "softplus": lambda t, beta=1.0: mpmath.log(1 + mpmath.exp(beta * t)) / beta,
    }[case.name]
    with mpmath.workdps(50):
        for order, found in enumerate(case.exact(x)):
            wanted = mpmath.diff(lambda t: plain(t, **case.parameters), mpmath.mpf(x), order)
            assert abs(found - wanted) <= mpmath.mpf(10) ** -30 * (1 + abs(wanted))
