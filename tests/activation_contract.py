"""What each function of ``lit_gelu.activations.functional`` promises: one set of tests that each family runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import ClassVar

import pytest
import torch
from activation_oracles import ActivationCase, points_about_extrema, sample_points, worst_ratios
from torch import Tensor

from lit_gelu.activations import registry
from lit_gelu.errors import ArgumentError

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
    """Subclasses name their ``cases``; an item holds a property of all of them."""

    cases: ClassVar[tuple[ActivationCase, ...]] = ()

    def _check_bound(
        self, points: Callable[[ActivationCase, torch.dtype], Tensor], dtypes: Iterable[torch.dtype]
    ) -> None:
        for case, dtype in itertools.product(self.cases, dtypes):
            worst = worst_ratios(case, points(case, dtype), EPSILONS[dtype])
            assert all(ratio <= 1 for ratio, _ in worst), (str(case), dtype, worst)

    def test_error_is_within_the_bound(self) -> None:
        self._check_bound(lambda case, dtype: sample_points(case, dtype, 150), EPSILONS)

    @pytest.mark.full
    def test_error_is_within_the_bound_densely(self) -> None:
        self._check_bound(lambda case, dtype: sample_points(case, dtype, 5000, seed=1), EPSILONS)

    @pytest.mark.parametrize("count", [40, pytest.param(3000, marks=pytest.mark.full)])
    def test_error_is_within_the_bound_about_extrema(self, count: int) -> None:
        self._check_bound(lambda case, _: points_about_extrema(case, count), [torch.float64])

    def test_the_bound_holds_at_any_tensor_length(self) -> None:
        for case, dtype in itertools.product(self.cases, EPSILONS):
            x = sample_points(case, dtype, 10, seed=2)
            split = [[torch.cat([case.compute(p, k) for p in x.split(size)]) for k in range(3)] for size in (1, 7)]
            tail = [case.compute(x.repeat(1000 // len(x) + 1), k)[-len(x) :] for k in range(3)]
            for results in (*split, tail):
                worst = worst_ratios(case, x, EPSILONS[dtype], results)
                assert all(ratio <= 1 for ratio, _ in worst), (str(case), dtype, worst)

    def test_every_16_bit_number_is_rounded_once(self) -> None:
        for case, dtype, order in itertools.product(self.cases, (torch.bfloat16, torch.float16), range(3)):
            x = every_half(dtype)
            x = x[~x.isnan()]
            y, exact = case.compute(x, order), case.compute(x.double(), order).to(dtype)
            apart = (rank(y) - rank(exact)).abs()
            assert y.dtype == dtype
            assert int(apart.max()) <= 1, (str(case), order, x[apart.argmax()])

    def test_infinities_and_nan(self) -> None:
        for case, dtype, length in itertools.product(self.cases, FLOATING, (1, 40)):
            x = torch.tensor([-math.inf, math.inf, math.nan], dtype=dtype).repeat(length)
            for order, limits in enumerate(case.limits):
                exact = torch.tensor([*limits, math.nan], dtype=dtype).repeat(length)
                torch.testing.assert_close(
                    case.compute(x, order),
                    exact,
                    equal_nan=True,
                    msg=lambda text: f"{case}, order {order}: {text}",  # noqa: B023
                )

    def test_autograd_gives_the_closed_forms(self) -> None:
        for case in self.cases:
            x = torch.cat([sample_points(case, torch.float64, 50, seed=3), torch.tensor([-math.inf, math.inf])])
            x = x.double().requires_grad_()
            (first,) = torch.autograd.grad(case.compute(x, 0).sum(), x, create_graph=True)
            _assert_close(first, case.compute(x, 1), x)
            if first.requires_grad:  # a piecewise linear function's does not depend on x
                (second,) = torch.autograd.grad(first.sum(), x)
                _assert_close(second, case.compute(x, 2), x)

    # torch's own rules for forward mode are scripted when the first of them is needed.
    @pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")
    def test_forward_mode_gives_the_closed_forms(self) -> None:
        for case, order in itertools.product(self.cases, (0, 1)):
            x = torch.cat([
                sample_points(case, torch.float64, 50, seed=4),
                torch.tensor([-math.inf, math.inf]),
            ]).double()
            _, tangent = torch.func.jvp(lambda t, c=case, k=order: c.compute(t, k), (x,), (torch.ones_like(x),))
            _assert_close(tangent, case.compute(x, order + 1), x)

    def test_vmap_equals_the_batch(self) -> None:
        x = torch.linspace(-9, 9, 60, dtype=torch.float64).reshape(5, 12)
        for case, order in itertools.product(self.cases, range(3)):
            mapped = torch.func.vmap(lambda row, c=case, k=order: c.compute(row, k))(x)
            torch.testing.assert_close(mapped, case.compute(x, order))

    @pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.full)], ids=["first", "every"])
    def test_compiles_without_a_graph_break(self, every: bool) -> None:
        x = torch.linspace(-9, 9, 64)
        for case in self.cases if every else self.cases[:1]:

            def all_orders(x: Tensor, case: ActivationCase = case) -> list[Tensor]:
                return [case.compute(x, order) for order in range(3)]

            torch.compiler.reset()
            compiled = torch.compile(all_orders, backend="aot_eager", fullgraph=True)(x)
            for y, exact in zip(compiled, all_orders(x), strict=True):
                torch.testing.assert_close(y, exact)

    def test_refuses_what_is_not_floating_and_other_orders(self) -> None:
        for case in self.cases:
            calls = [
                (torch.arange(3), 0),
                (torch.arange(3), 1),
                (1.0, 0),
                (1.0, 1),
                (torch.zeros(2), -1),
                (torch.zeros(2), 3),
            ]
            for x, order in calls:
                with pytest.raises(ArgumentError):
                    case.compute(x, order)  # type: ignore[arg-type]

    def test_the_joint_form_has_16_bits_and_the_tails(self) -> None:
        """Rounded once it is the exact f and f' of every 16-bit number, to one unit and to 1e-36."""
        for case in self.cases:
            joint = registry.entry(case.name).joint
            if joint is None or case.parameters.get("threshold"):
                continue
            for dtype in (torch.bfloat16, torch.float16):
                x = every_half(dtype)
                x = x[~x.isnan()]
                for order, y in enumerate(joint(x.float(), **case.parameters)[:2]):
                    exact = case.compute(x.double(), order).to(dtype)
                    away = (rank(y.to(dtype)) - rank(exact)).abs() > 1
                    assert ((y.double() - exact.double()).abs()[away] < 1e-36).all(), (str(case), order, x[away])


def _assert_close(value: Tensor, expected: Tensor, x: Tensor) -> None:
    """Compare to 12 digits; NaN nowhere."""
    error = (value - expected).detach().abs()
    allowed = 1e-12 * (1 + expected.detach().abs())
    wrong = ~(error <= allowed) & ~((value == expected) & expected.isinf())
    assert not wrong.any(), (x[wrong], value[wrong], expected[wrong])
