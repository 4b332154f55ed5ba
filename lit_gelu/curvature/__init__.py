"""Curvature as pure functions: statistics of an activation's input, and what measuring them in a live model takes."""

from lit_gelu.curvature.errors import CurvatureArgumentError
from lit_gelu.curvature.jump import jump_sums, relative_jump
from lit_gelu.curvature.recorder import ActivationRecorder, statistics_by_site
from lit_gelu.curvature.rows import count_rows, draw_rows, take_rows
from lit_gelu.curvature.sandbox import evaluation_sandbox
from lit_gelu.curvature.statistics import (
    EPSILON,
    STATISTICS,
    SUMS,
    accumulation_dtype,
    activation_statistics,
    activation_sums,
    statistics_from_sums,
)

__all__ = [
    "EPSILON",
    "STATISTICS",
    "SUMS",
    "ActivationRecorder",
    "CurvatureArgumentError",
    "accumulation_dtype",
    "activation_statistics",
    "activation_sums",
    "count_rows",
    "draw_rows",
    "evaluation_sandbox",
    "jump_sums",
    "relative_jump",
    "statistics_by_site",
    "statistics_from_sums",
    "take_rows",
]
