"""What each function of ``lit_gelu.activations.functional`` promises: one set of tests that each family runs."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
import torch
from activation_oracles import ActivationCase, points_about_extrema, sample_points, worst_ratios
from torch import Tensor

from lit_gelu.activations import functional
from lit_gelu.activations.errors import ActivationArgumentError

EPSILONS = {torch.float64: 4.0, torch.float32: 8.0}
FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def every_half(dtype: torch.dtype) -> Tensor:
    """Return the numbers of all 65,536 bit patterns of a 16-bit dtype."""
    return torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)


def rank(x: Tensor) -> Tensor:
    """Return the place of each number of a 16-bit dtype among all: a difference of 1 is one unit in the last place."""
    bits = x.view(torch.int16).to(torch.int64)
    return torch.where(bits < 0, -32768 - bits, bits)


class ActivationContract:
    """Subclasses name their ``cases``."""

    cases: ClassVar[tuple[ActivationCase, ...]] = ()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "case" in metafunc.fixturenames:
            metafunc.parametrize("case", metafunc.cls.cases, ids=str)
        if "first_case" in metafunc.fixturenames:  # what costs seconds: for the others of a family `full` is enough
            first, *others = metafunc.cls.cases
            marked = [pytest.param(case, marks=pytest.mark.full) for case in others]
            metafunc.parametrize("first_case", [first, *marked], ids=str)

    @pytest.mark.parametrize("dtype", EPSILONS, ids=str)
    def test_error_is_within_the_bound(self, case: ActivationCase, dtype: torch.dtype) -> None:
        worst = worst_ratios(case, sample_points(case, dtype, 150), EPSILONS[dtype])
        assert all(ratio <= 1 for ratio, _ in worst), worst

    @pytest.mark.full
    @pytest.mark.parametrize("dtype", EPSILONS, ids=str)
    def test_error_is_within_the_bound_densely(self, case: ActivationCase, dtype: torch.dtype) -> None:
        worst = worst_ratios(case, sample_points(case, dtype, 5000, seed=1), EPSILONS[dtype])
        assert all(ratio <= 1 for ratio, _ in worst), worst

    @pytest.mark.parametrize("count", [40, pytest.param(3000, marks=pytest.mark.full)])
    def test_error_is_within_the_bound_about_extrema(self, case: ActivationCase, count: int) -> None:
        worst = worst_ratios(case, points_about_extrema(case, count), EPSILONS[torch.float64])
        assert all(ratio <= 1 for ratio, _ in worst), worst

    @pytest.mark.parametrize("dtype", EPSILONS, ids=str)
    def test_the_bound_holds_at_any_tensor_length(self, case: ActivationCase, dtype: torch.dtype) -> None:
        x = sample_points(case, dtype, 10, seed=2)
        for size in (1, 7):
            results = [torch.cat([case.compute(part, order) for part in x.split(size)]) for order in range(3)]
            worst = worst_ratios(case, x, EPSILONS[dtype], results)
            assert all(ratio <= 1 for ratio, _ in worst), (size, worst)
        results = [case.compute(x.repeat(1000 // len(x) + 1), order)[-len(x) :] for order in range(3)]
        assert all(ratio <= 1 for ratio, _ in worst_ratios(case, x, EPSILONS[dtype], results))

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    def test_every_16_bit_number_is_rounded_once(self, case: ActivationCase, dtype: torch.dtype) -> None:
        x = every_half(dtype)
        x = x[~x.isnan()]
        for order in range(3):
            found, wanted = case.compute(x, order), case.compute(x.double(), order).to(dtype)
            apart = (rank(found) - rank(wanted)).abs()
            assert found.dtype == dtype
            assert int(apart.max()) <= 1, (order, x[apart.argmax()])

    @pytest.mark.parametrize("dtype", FLOATING, ids=str)
    def test_infinities_and_nan(self, case: ActivationCase, dtype: torch.dtype) -> None:
        for length in (1, 40):
            x = torch.tensor([-math.inf, math.inf, math.nan], dtype=dtype).repeat(length)
            for order, limits in enumerate(case.limits):
                found = case.compute(x, order)
                wanted = torch.tensor([*limits, math.nan], dtype=dtype).repeat(length)
                torch.testing.assert_close(found, wanted, equal_nan=True, msg=lambda text: f"order {order}: {text}")  # noqa: B023

    def test_autograd_gives_the_closed_forms(self, case: ActivationCase) -> None:
        x = torch.cat([sample_points(case, torch.float64, 50, seed=3), torch.tensor([-math.inf, math.inf])])
        x = x.double().requires_grad_()
        value = case.compute(x, 0)
        (first,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        _assert_close(first, case.compute(x, 1), x)
        if first.requires_grad:  # a piecewise linear function's does not depend on x
            (second,) = torch.autograd.grad(first.sum(), x)
            _assert_close(second, case.compute(x, 2), x)

    # torch's own rules for forward mode are scripted when the first of them is needed.
    @pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")
    def test_forward_mode_gives_the_closed_forms(self, case: ActivationCase) -> None:
        x = torch.cat([sample_points(case, torch.float64, 50, seed=4), torch.tensor([-math.inf, math.inf])]).double()
        for order in (0, 1):
            _, tangent = torch.func.jvp(lambda t, k=order: case.compute(t, k), (x,), (torch.ones_like(x),))
            _assert_close(tangent, case.compute(x, order + 1), x)

    def test_vmap_equals_the_batch(self, case: ActivationCase) -> None:
        x = torch.linspace(-9, 9, 60, dtype=torch.float64).reshape(5, 12)
        for order in range(3):
            mapped = torch.func.vmap(lambda row, k=order: case.compute(row, k))(x)
            torch.testing.assert_close(mapped, case.compute(x, order))

    def test_compiles_without_a_graph_break(self, first_case: ActivationCase) -> None:
        def all_orders(x: Tensor) -> list[Tensor]:
            return [first_case.compute(x, order) for order in range(3)]

        torch.compiler.reset()
        x = torch.linspace(-9, 9, 64)
        for found, wanted in zip(
            torch.compile(all_orders, backend="aot_eager", fullgraph=True)(x), all_orders(x), strict=True
        ):
            torch.testing.assert_close(found, wanted)

    def test_refuses_what_is_not_floating(self, case: ActivationCase) -> None:
        for order in (0, 1):
            with pytest.raises(ActivationArgumentError, match=r"int64.*float32.*x\.to\(torch\.float32\)"):
                case.compute(torch.arange(3), order)
            with pytest.raises(ActivationArgumentError, match="x is a float"):
                case.compute(1.0, order)  # type: ignore[arg-type]

    def test_refuses_other_orders(self, case: ActivationCase) -> None:
        for order in (-1, 3):
            with pytest.raises(ActivationArgumentError, match=f"{case.name}_derivative: order={order} .*Use 1 or 2"):
                case.compute(torch.zeros(2), order)

    def test_is_exported(self, case: ActivationCase) -> None:
        assert {case.name, f"{case.name}_derivative"} <= set(functional.__all__)


def _assert_close(found: Tensor, wanted: Tensor, x: Tensor) -> None:
    """Compare to 12 digits; NaN nowhere."""
    error = (found - wanted).detach().abs()
    allowed = 1e-12 * (1 + wanted.detach().abs())
    wrong = ~(error <= allowed) & ~((found == wanted) & wanted.isinf())
    assert not wrong.any(), (x[wrong], found[wrong], wanted[wrong])
