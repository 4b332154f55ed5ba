"""What can go wrong when the paper's protocol is run or evaluated."""

from lit_gelu.errors import LitGeluError


class PaperError(LitGeluError):
    """A run, a record or an argument of the protocol that cannot be used as it stands."""


class PaperArgumentError(PaperError, ValueError):
    """A name of an experiment, an arm or a preset that does not exist, or an argument out of its range."""


class RecordsError(PaperError, ValueError):
    """A file of records that is damaged, or that another version wrote."""


class ResultsInUseError(PaperError, OSError):
    """A folder of results that another run is writing to."""


class OtherConfigurationError(PaperError, ValueError):
    """A finished run of the same name that was made with another configuration."""


class ClusterError(PaperError, RuntimeError):
    """A Ray cluster that cannot be joined, or that cannot make the runs."""
