"""What can go wrong when a callback is set up or meets its Trainer, and how that is told."""

import sys
import traceback
import weakref
from collections.abc import Callable
from types import TracebackType

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from lit_gelu import errors
from lit_gelu.errors import ArgumentError, LitGeluError

CallbackArgumentError = ArgumentError


class NoLoggerError(LitGeluError, MisconfigurationException):
    """A callback whose work is to log, in a Trainer that has no logger."""


class NoActivationError(LitGeluError, MisconfigurationException):
    """A callback that works on activations, in a model that has none it may work on."""


class UnsupportedRunError(errors.UnsupportedRunError, MisconfigurationException):
    """A Trainer, strategy, optimizer, scheduler or other callback that a callback cannot work with."""


class MixedPackagesError(LitGeluError, TypeError):
    """Classes of ``pytorch_lightning`` together with those of ``lightning.pytorch``."""


ExceptHook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


class ExplainedOnce(Callback):
    """A callback whose Trainer ends with one traceback where every rank meets the same mistake of the user.

    Rank 0 prints the traceback. The others print the error's class and message in a line with their rank: a rank cannot
    ask the others whether they failed too, and an error of its own must be seen. Exit codes stay as they are, and so do
    errors of other kinds, whose tracebacks may differ.

    This is for ranks that are scripts of their own (Lightning's ``ddp`` strategy, ``torchrun``, SLURM). Of spawned and
    forked ranks torch raises the first one's error in the parent, and prints none in the ranks.
    """

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the traceback out on every rank but the first."""
        if isinstance(exception, LitGeluError) and trainer.global_rank > 0:
            sys.excepthook = _InOneLine(exception, trainer.global_rank)


class _InOneLine:
    """``sys.excepthook`` for one error; all others go to the hook that was there, so it may stay if this is caught."""

    def __init__(self, error: LitGeluError, rank: int) -> None:
        present = sys.excepthook
        self._before: ExceptHook = present._before if isinstance(present, _InOneLine) else present
        self._error = weakref.ref(error)  # its frames hold the model
        self._rank = rank

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if error is not self._error():
            self._before(kind, error, trace)
            return
        sys.stderr.write(f"[rank{self._rank}]: {''.join(traceback.format_exception_only(error))}")
