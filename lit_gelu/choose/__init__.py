"""Which activation for a model: candidates trained alike, compared over seeds, with what each costs."""

from lit_gelu.choose.choose import choose
from lit_gelu.choose.result import ActivationChoice, CandidateReport, Metric, TrainedRun
from lit_gelu.choose.statistics import PairedDifference
from lit_gelu.errors import ArgumentError, UnsupportedRunError

ChoiceArgumentError = ArgumentError
AllRunsFailedError = UnsupportedRunError

__all__ = [
    "ActivationChoice",
    "AllRunsFailedError",
    "CandidateReport",
    "ChoiceArgumentError",
    "Metric",
    "PairedDifference",
    "TrainedRun",
    "choose",
]
