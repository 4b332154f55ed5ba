"""The report of a run: what it holds, what its figures mean, and how it is written and read."""

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
from lit_gelu.report.errors import ReportFileError, ReportSourceError
from lit_gelu.report.judgement import judged
from lit_gelu.report.page import page
from lit_gelu.report.plain_data import SCHEMA, SCHEMA_VERSION, from_json, read_report, to_json

__all__ = [
    "SCHEMA",
    "SCHEMA_VERSION",
    "ExportedFile",
    "LoggedCurve",
    "OptimizerSettings",
    "ReportFileError",
    "ReportSourceError",
    "ReportedRun",
    "RunFinding",
    "SiteActivations",
    "SwapChange",
    "SwapEvent",
    "from_json",
    "judged",
    "page",
    "read_report",
    "to_json",
]
