"""Which activation for a model: candidates trained alike, compared over seeds."""

from lit_gelu.choose.choose import choose
from lit_gelu.choose.compare import compare
from lit_gelu.choose.result import ActivationChoice, CandidateReport, TrainedRun
from lit_gelu.choose.statistics import Metric, MetricDifference

__all__ = ["ActivationChoice", "CandidateReport", "Metric", "MetricDifference", "TrainedRun", "choose", "compare"]
