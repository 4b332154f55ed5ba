"""Which activation for a model: candidates trained alike, compared over seeds, with what each costs."""

from lit_gelu.replicas.choice.choose import choose
from lit_gelu.replicas.choice.errors import AllRunsFailedError, ChoiceArgumentError, ChoiceError, FolderInUseError
from lit_gelu.replicas.choice.intervals import PairedDifference
from lit_gelu.replicas.choice.metric import Metric
from lit_gelu.replicas.choice.outcome import ActivationChoice, CandidateReport
from lit_gelu.replicas.choice.run_files import TrainedRun

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
