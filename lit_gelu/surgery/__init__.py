"""Finds activation sites in any ``nn.Module``; plans, applies and undoes a swap."""

from lit_gelu.errors import SwapError
from lit_gelu.surgery.channels import infer_channels_
from lit_gelu.surgery.coverage import CoverageReport, CoveredSite, coverage
from lit_gelu.surgery.observation import ActivationCall
from lit_gelu.surgery.report import SwappedSite, SwapReport
from lit_gelu.surgery.sites import ActivationSite, find_sites
from lit_gelu.surgery.swap import Selector, SwapPlan, by_activation, plan_swap, swap, without_marks

NoMatchError = SwapConflictError = SwapError

__all__ = [
    "ActivationCall", "ActivationSite", "CoverageReport", "CoveredSite", "NoMatchError", "Selector",
    "SwapConflictError", "SwapError", "SwapPlan", "SwapReport", "SwappedSite", "by_activation", "coverage",
    "find_sites", "infer_channels_", "plan_swap", "swap", "without_marks",
]  # fmt: skip
