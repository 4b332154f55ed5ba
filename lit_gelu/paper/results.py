"""A run in a few numbers."""

import math
from collections.abc import Mapping

from lit_gelu.paper.records import Curve, RunResult


def result_of(curves: Mapping[str, Curve]) -> RunResult:
    """Return a run in a few numbers.

    Args:
        curves: Its curves.

    Returns:
        The numbers; ``None`` where there is no such curve or the value is no finite number.

    Example:
        >>> curves = {
        ...     "val_error": Curve((1.0, 2.0, 3.0), (0.3, 0.1, 0.1)),
        ...     "test_error": Curve((1.0, 2.0, 3.0), (0.4, 0.2, 0.15)),
        ... }
        >>> result = result_of(curves)
        >>> result.best_val_epoch, result.test_error_at_best_val, result.last_test_error
        (2.0, 0.2, 0.15)
    """
    last = {name: _finite(curve.value[-1]) if curve.value else None for name, curve in curves.items()}
    val, test = curves.get("val_error"), curves.get("test_error")
    finite = [] if val is None else [(value, epoch) for epoch, value in zip(val.epoch, val.value, strict=True)]
    finite = [pair for pair in finite if math.isfinite(pair[0])]
    best, epoch = min(finite) if finite else (None, None)  # of equal ones the first
    at_best = None
    if test is not None and epoch is not None:
        at_best = _finite(dict(zip(test.epoch, test.value, strict=True))[epoch])
    return RunResult(
        best_val_epoch=epoch,
        best_val_error=best,
        test_error_at_best_val=at_best,
        last_test_error=last.get("test_error"),
        last_test_loss=last.get("test_loss"),
        last_train_loss=last.get("train_loss"),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
