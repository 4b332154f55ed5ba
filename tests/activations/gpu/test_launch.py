"""What kernels are started with: grids that reach every element of huge tensors, layouts, and joined rows."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lit_gelu.activations.gpu import launch, launch_gated, launch_learned
from lit_gelu.activations.gpu.launch import BLOCK


@pytest.fixture
def started(monkeypatch):
    calls = []

    def note(kernel, on, grid, *arguments, **constants):
        calls.append((kernel, grid, arguments))

    for module in (launch, launch_gated, launch_learned):
        monkeypatch.setattr(module, "start", note)
    return calls


def huge(*shape):
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")


def test_every_element_of_a_huge_tensor_has_a_program(started):
    x = huge(2**33 + 5)
    launch.unary_forward(x, "gelu", 0.0, 0.0)
    launch.unary_backward(x, x, "gelu", 0.0, 0.0)
    launch.zero_identity_forward(x, torch.zeros((), dtype=torch.int64))
    for _, grid, arguments in started:
        assert grid == (2**23 + 1,)
        assert grid[0] < 2**31
        assert x.numel() in [given for given in arguments if isinstance(given, int)]


def test_halves_of_a_huge_tensor(started):
    y = launch_gated.gated_forward(huge(2**20, 2**14), "gelu", 0.0, -1, 0)
    assert y.shape == (2**20, 2**13)
    assert started[0][1] == (2**20, 8)


def test_outputs_lie_as_inputs_do(started):
    for order in ((0, 1, 2, 3), (0, 2, 3, 1), (3, 1, 0, 2)):
        x = torch.empty([(4, 6, 8, 10)[i] for i in order]).permute([order.index(i) for i in range(4)])
        assert launch.unary_forward(x, "gelu", 0.0, 0.0).stride() == x.stride()
        for dim in range(4):
            y = launch_gated.gated_forward(x, "gelu", 0.0, dim, 0)
            assert y.shape[dim] == x.shape[dim] // 2
            assert launch.dense(y) is y
            outer = sorted(range(4), key=lambda i: -x.stride(i))
            assert outer == sorted(range(4), key=lambda i: -y.stride(i))
            assert launch_gated.half(x, dim) == started[-1][2][2]


@given(st.integers(2, 5000), st.integers(1, 2**33))
def test_rows_that_are_joined_reach_every_element(channels, elements):
    joined = launch_learned._joined(elements, channels)
    width = joined.copies * channels
    rows, columns = joined.grid
    assert rows * joined.rows * width >= elements > (rows - 1) * joined.rows * width
    assert columns * BLOCK >= width > (columns - 1) * BLOCK
    assert columns <= 65_535
    assert width / (columns * BLOCK) >= 0.75  # the share of a program's lanes that have work


@pytest.mark.parametrize("channels", [3, 5, 17, 48, 300, 513, 768, 3000, 4097, 16_383])
def test_few_lanes_are_idle_and_rows_begin_where_wide_loads_do(channels):
    joined = launch_learned._joined(2**24, channels)
    width = joined.copies * channels
    assert width / (joined.grid[1] * BLOCK) >= 0.85
    assert width % 16 == 0 or 16 * channels > 2**14


def test_what_is_dense(started):
    x = torch.empty(4, 6, 8)
    for view in (x, x.permute(2, 0, 1), x[1:], x[:, :1].expand(4, 1, 8)[:1], torch.empty(0, 3), torch.empty(())):
        assert launch.dense(view) is view
        assert launch.as_dense(view) is view
    for view in (x[:, ::2], x[..., 1:], x[:1].expand(3, 6, 8)):
        assert launch.dense(view).is_contiguous()
        assert launch.as_dense(view).stride() == launch.dense(view).stride()
    assert not started


def test_gradients_are_laid_out_as_inputs():
    x = torch.empty(4, 6).t()
    same = torch.ones(4, 6).t()
    assert launch.laid_out_as(same, x) is same
    for gradient in (torch.randn(6, 4), torch.randn(1).expand(6, 4)):
        found = launch.laid_out_as(gradient, x)
        assert found.stride() == x.stride()
        assert torch.equal(found, gradient)
