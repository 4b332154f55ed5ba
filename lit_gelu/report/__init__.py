"""The report of a run: what it holds, what its figures mean, and its page."""

from lit_gelu.report.content import (
    ExportedFile,
    LoggedCurve,
    OptimizerSettings,
    ReportedRun,
    RunFinding,
    SiteActivations,
    SwapChange,
    SwapEvent,
)
from lit_gelu.report.findings import judged
from lit_gelu.report.page import page

__all__ = [
    "ExportedFile", "LoggedCurve", "OptimizerSettings", "ReportedRun", "RunFinding", "SiteActivations", "SwapChange",
    "SwapEvent", "judged", "page",
]  # fmt: skip
