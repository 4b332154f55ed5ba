"""Running a model on the side of its training; the tools are `lit_gelu.sandbox`'s, which surgery uses too."""

from lit_gelu.sandbox import evaluation_mode, evaluation_sandbox

__all__ = ["evaluation_mode", "evaluation_sandbox"]
