"""How a training step logs a figure: of each step, of the epoch, and how steps become the epoch's value."""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from lit_gelu.replicas.errors import NotReplicableError


class LogOptions(NamedTuple):
    """What ``self.log`` was asked for in a training step; the defaults are Lightning's there."""

    on_step: bool = True
    on_epoch: bool = False
    reduction: str = "mean"
    batch_size: int | None = None

    @classmethod
    def of(
        cls,
        name: str,
        prog_bar: bool = False,  # noqa: ARG003 - in Lightning's order
        logger: bool | None = None,  # noqa: ARG003
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: str | Callable[..., Any] = "mean",
        *_: Any,
        batch_size: int | None = None,
        **__: Any,
    ) -> Self:
        """Return the options of a call of ``self.log``, which are its arguments behind the value."""
        on_step, on_epoch = on_step is None or on_step, bool(on_epoch)
        if not on_epoch:
            return cls(on_step)
        asked = (reduce_fx if isinstance(reduce_fx, str) else getattr(reduce_fx, "__name__", "")).lower()
        reduction = "mean" if asked == "avg" else asked
        if reduction not in _REDUCTIONS:
            raise NotReplicableError(
                f"self.log({name!r}, reduce_fx={reduce_fx!r}) is not accepted. Give one of "
                f"{', '.join(map(repr, _REDUCTIONS))}."
            )
        return cls(on_step, on_epoch, reduction, None if batch_size is None else int(batch_size))

    def of_epoch(self, values: Tensor) -> Tensor:
        """Return the epoch's value of each replica, of its steps', ``[steps, replicas]``."""
        # Steps weigh the same in a mean: batches are of one size, and `keep` sees that what a user gives as such is.
        return _REDUCTIONS[self.reduction](values)


_REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda values: values.mean(0),
    "sum": lambda values: values.sum(0),
    "max": lambda values: values.amax(0),
    "min": lambda values: values.amin(0),
}


def keep(kept: dict[str, LogOptions], name: str, options: LogOptions) -> None:
    """Keep how a figure is logged.

    Raises:
        NotReplicableError: If it was logged in another way before.
    """
    if kept.setdefault(name, options) != options:
        raise NotReplicableError(
            f"self.log({name!r}, ...) was called with {_shown(kept[name])} and with {_shown(options)}. Log a figure "
            "in one way, in all steps and members; its mean over batches of changing sizes cannot be had in a group."
        )


def as_figure(value: Any) -> Tensor:
    """Return a logged value as a number that can be reduced, of the types that Lightning logs."""
    figure = torch.as_tensor(value, dtype=None if isinstance(value, Tensor) else torch.float32).detach()
    return figure if figure.dtype in {torch.float32, torch.float64} else figure.to(torch.get_default_dtype())


def _shown(options: LogOptions) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options._asdict().items())
