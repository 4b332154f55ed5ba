"""Which activation for a model: candidates trained alike, compared over seeds, with what each costs."""

from lit_gelu.choose.choose import choose
from lit_gelu.choose.errors import AllRunsFailedError, ChoiceArgumentError, ChoiceError, FolderInUseError
from lit_gelu.choose.intervals import PairedDifference
from lit_gelu.choose.metric import Metric
from lit_gelu.choose.outcome import ActivationChoice, CandidateReport
from lit_gelu.choose.run_files import TrainedRun

__all__ = [
    "ActivationChoice",
    "AllRunsFailedError",
    "CandidateReport",
    "ChoiceArgumentError",
    "ChoiceError",
    "FolderInUseError",
    "Metric",
    "PairedDifference",
    "TrainedRun",
    "choose",
]
