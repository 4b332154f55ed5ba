"""Arguments of rows that users register: annotations as text, as ``from __future__`` makes them; lists as defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from lit_gelu.activations import ActivationArgumentError, ActivationRegistry

if TYPE_CHECKING:
    from collections.abc import Sized


class PerChannel(nn.Module):
    """Takes a number, or one for each channel."""

    def __init__(self, scale: float | tuple[float, ...] = 1.0, offset: float = 0.0) -> None:
        super().__init__()
        self.scale, self.offset = scale, offset

    def forward(self, x):
        return torch.tensor(self.scale) * x + self.offset


def knots(x, at=[1.0, 2.0]):  # noqa: B006 - as users write it
    return x * at[-1]


@pytest.fixture
def registry():
    registry = ActivationRegistry()
    registry.register("per_channel")(PerChannel)
    registry.register("knots")(knots)
    return registry


def test_annotations_may_be_text(registry):
    module = registry.create("per_channel(scale=(1.0, 2.0))")
    assert module.scale == (1.0, 2.0)
    assert str(registry.spec_of(module)) == "per_channel(scale=(1.0, 2.0))"
    with pytest.raises(ActivationArgumentError):
        registry.create("per_channel(offset=(1.0, 2.0))")


def test_annotations_that_cannot_be_read_are_left_alone(registry):
    @registry.register("unread")
    def unread(x, of: Sized | None = None, scale: float = 1.0):
        return scale * x

    assert registry.create("unread(scale=2.0)")(torch.ones(1)).item() == 2.0


def test_a_list_as_a_default_takes_several_values(registry):
    assert registry.create("knots(at=[1.0, 3.0])")(torch.ones(1)).item() == 3.0
    assert str(registry.resolve("knots", at=[1.0, 3.0])) == "knots(at=(1.0, 3.0))"
    assert str(registry.resolve("knots", at=[1.0, 2.0])) == "knots"
    assert registry.create("knots")(torch.ones(1)).item() == 2.0
    with pytest.raises(ActivationArgumentError):
        registry.create("knots(at=3)")
