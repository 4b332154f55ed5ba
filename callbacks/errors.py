"""What can go wrong when a callback is set up or meets its Trainer."""

from lightning.fabric.utilities.exceptions import MisconfigurationException

from lit_gelu.errors import LitGeluError


class CallbackArgumentError(LitGeluError, ValueError):
    """An argument of a callback that it cannot work with."""


class NoLoggerError(LitGeluError, MisconfigurationException):
    """A callback whose work is to log, in a Trainer that has no logger."""


class NoActivationError(LitGeluError, MisconfigurationException):
    """A callback that works on activations, in a model that has none it may work on."""


class UnsupportedRunError(LitGeluError, MisconfigurationException):
    """A Trainer, strategy, optimizer, scheduler or other callback that a callback cannot work with."""


class MixedPackagesError(LitGeluError, TypeError):
    """Classes of ``pytorch_lightning`` together with those of ``lightning.pytorch``."""
