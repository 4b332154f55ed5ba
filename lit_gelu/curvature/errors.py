"""What can go wrong when curvature is measured."""

from lit_gelu.errors import ArgumentError, LitGeluError

CurvatureArgumentError = ArgumentError


class LossCurvatureError(LitGeluError, ValueError):
    """An argument that no curvature can be computed from."""


class NoLossError(LossCurvatureError):
    """A training step that returned ``None`` for a batch: training skips it, so there is no loss to measure."""


class NonFiniteCurvatureError(LitGeluError, ArithmeticError):
    """A loss, a gradient or a product that is NaN or infinite: it is reported, never replaced by a number."""


class NoProductError(LossCurvatureError, RuntimeError):
    """A way to compute products that was asked for by name, and that a model does not allow."""


class MemoryBudgetError(LitGeluError, MemoryError):
    """A computation that would keep more vectors than its budget allows."""
