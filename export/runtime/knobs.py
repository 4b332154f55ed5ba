"""The settings that `tune` varies, with the values that it tries."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lit_gelu.export.runtime.model_file import ModelFile
from lit_gelu.export.runtime.providers import CPU, CUDA
from lit_gelu.export.runtime.tuning_file import cores

# By operator of the file: onnxruntime's fusions that take it. Each replaces several kernels by one, which is not always
# the faster: measured on the CPU, QuickGelu and GELU in pieces take turns by size.
_FUSIONS: Mapping[str, tuple[str, ...]] = {
    "Sigmoid": ("QuickGeluFusion",),
    "Gelu": ("BiasGeluFusion",),
    "com.microsoft::Gelu": ("BiasGeluFusion",),
    "Erf": ("GeluFusionL1", "GeluFusionL2"),
    "Tanh": ("FastGeluFusion",),
    "LayerNormalization": ("SkipLayerNormFusion",),
    "Conv": ("NchwcTransformer",),
    "MatMul": ("MatMulAddFusion",),
}
_CUDA_FUSIONS = {"MatMul": "MatMulAddFusion", "Sigmoid": "QuickGeluFusion"}  # of those, what CUDA's provider runs too


@dataclass(frozen=True)
class Knob:
    """One setting, as `lit_gelu.export.runtime.settings` has it, and the values to try."""

    name: str
    values: tuple[Any, ...]  # or mappings of several settings that act on each other
    needs: tuple[str, Any] | None = None  # a setting and the value that it must have before this one is tried

    def settings(self, value: Any) -> dict[str, Any]:
        """Return what one of the values sets."""
        return dict(value) if isinstance(value, Mapping) else {self.name: value}


def knobs_for(provider: str, model: ModelFile, batch_size: int, *, allow_tf32: bool = False) -> list[Knob]:
    """Return the settings that may matter to a file, those that change most first; for the CPU and CUDA alone."""
    if provider == CPU:
        return cpu_knobs(model, cores())
    return cuda_knobs(model, batch_size, allow_tf32=allow_tf32) if provider == CUDA else []


def cpu_knobs(model: ModelFile, threads: int) -> list[Knob]:
    """Return the settings of the CPU."""
    powers = {2**i for i in range(threads.bit_length()) if 2**i < threads}
    fusions = {name: None for operator in model.operators for name in _FUSIONS.get(operator, ())}
    knobs = [
        Knob("intra_op_num_threads", tuple(sorted({*powers, threads}))),
        Knob("graph_optimization_level", ("extended", "basic", "disabled")),
        Knob("enable_mem_pattern", (False,)),
    ]
    if threads > 1:
        knobs.append(Knob("allow_spinning", (False,)))
    if fusions:
        knobs.append(Knob("disabled_optimizers", tuple((name,) for name in fusions)))
    return knobs


def cuda_knobs(model: ModelFile, batch_size: int, *, allow_tf32: bool = False) -> list[Knob]:
    """Return the settings of CUDA, the batch size that of a CUDA graph."""
    # TF32 of files in 16 bit is never varied: there the option decides about the tensor cores, and is on.
    graph = {"batch_buckets": (batch_size,)}
    knobs = [Knob("use_tf32", (1,))] if allow_tf32 and not model.sixteen_bit else []
    if "Conv" in model.operators or "ConvTranspose" in model.operators:
        nhwc = {"prefer_nhwc": 1}
        knobs += [
            Knob("layout and CUDA graph", (nhwc, graph, {**nhwc, **graph})),  # onnxruntime refuses some pairs
            Knob("fuse_conv_bias", (1,), needs=("prefer_nhwc", 1)),  # alone it fails on some networks
            Knob("cudnn_conv_algo_search", ("HEURISTIC", "DEFAULT")),
        ]
    else:
        knobs.append(Knob("CUDA graph", (graph,)))
    if fusions := [name for operator, name in _CUDA_FUSIONS.items() if operator in model.operators]:
        knobs.append(Knob("disabled_optimizers", tuple((name,) for name in fusions)))
    return knobs
