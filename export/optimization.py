"""onnxruntime's offline optimiser of transformers: operators that it fuses, in a file that is proved like any other.

onnxruntime fuses many patterns itself whenever it opens a file. Some, such as attention, are left to this optimiser,
``onnxruntime.transformers.optimizer``, which fuses what fits its patterns, and is silent where none does.
"""

import contextlib
import importlib
import io
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from onnx import helper

from lit_gelu.display import Displayed
from lit_gelu.errors import ArgumentError, ExportError, message_of, shown
from lit_gelu.export.metadata import PREFIX, census, metadata_of, save_model
from lit_gelu.export.runtime.model_file import INT8_RECORD
from lit_gelu.files import captured_stdout, require_writable

_CONTRIB = "com.microsoft"


@dataclass(frozen=True, repr=False)
class OptimizationResult(Displayed):
    """What `optimize_onnx` wrote.

    Args:
        path: The file.
        model_type: Whose patterns were looked for.
        fused: How many nodes of each operator came.
        nodes: How many nodes there were, and are.
    """

    path: Path
    model_type: str
    fused: Mapping[str, int]
    nodes: tuple[int, int]

    def __str__(self) -> str:
        came = ", ".join(f"{count} {name}" for name, count in self.fused.items())
        before, after = self.nodes
        return f"{self.path}: {came or 'nothing'} by the patterns of {self.model_type}; {before} nodes became {after}"

    _summary = __str__


def optimize_onnx(
    source: str | os.PathLike[str], path: str | os.PathLike[str], model_type: str = "bert"
) -> OptimizationResult:
    """Write a file of `lit_gelu.export.export_onnx` anew with the operators that onnxruntime's optimiser fuses.

    It runs in onnxruntime alone, and `lit_gelu.export.check_parity` proves it with activations as they are recognised:
    after the optimiser there is no telling which nodes were a site's.

    Args:
        source: The file.
        path: Where the new one goes.
        model_type: Whose patterns are looked for: ``"bert"``, ``"vit"``, ``"clip"``, ``"gpt2"``, ``"t5"`` and others of
            ``onnxruntime.transformers.optimizer.MODEL_TYPES``.

    Returns:
        What was fused: nothing, where no pattern fits.

    Raises:
        ArgumentError: If there is no such type.
        ModelFileError: If the file is missing or damaged, or `export_onnx` did not write it.
        ExportError: If the optimiser fails, or makes a graph that is not valid, or the file is in int8.
        UnwritablePathError: If the file cannot be written.

    Example:
        >>> import tempfile, torch
        >>> from lit_gelu.export import check_parity, export_onnx
        >>> folder = Path(tempfile.mkdtemp())
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
        >>> _ = export_onnx(net, folder / "net.onnx", torch.zeros(2, 3, 4))
        >>> dict(optimize_onnx(folder / "net.onnx", folder / "fused.onnx").fused)
        {'com.microsoft::BiasGelu': 1}
        >>> check_parity(net, folder / "fused.onnx", input_sample=torch.zeros(2, 3, 4)).passed
        True
    """
    optimizer: Any = importlib.import_module("onnxruntime.transformers.optimizer")  # takes a second
    if model_type not in optimizer.MODEL_TYPES:
        raise ArgumentError(
            f"model_type={shown(model_type)} is not accepted. Give one of {', '.join(optimizer.MODEL_TYPES)}."
        )
    require_writable(path)
    record = metadata_of(source)
    model = onnx.load(source)
    if any(entry.key == INT8_RECORD for entry in model.metadata_props):
        raise ExportError(f"{os.fspath(source)!r} is in int8. Optimise the file that it was made from.")
    before = census(model)
    options = importlib.import_module("onnxruntime.transformers.fusion_options").FusionOptions(model_type)
    # Of a bias and the tanh form the optimiser makes BiasGelu, which is the exact one (onnxruntime 1.31.1).
    forms = {
        helper.get_node_attr_value(n, "approximate") for n in model.graph.node if n.op_type == "Gelu" and n.attribute
    }
    options.enable_bias_gelu = b"tanh" not in forms
    try:
        with captured_stdout(), contextlib.redirect_stderr(io.StringIO()):  # it tells of its own shape inference
            optimised = optimizer.optimize_model(model, model_type, optimization_options=options, opt_level=0).model
    except Exception as error:
        raise ExportError(
            f"onnxruntime's optimiser fails with the patterns of {model_type}: {message_of(error)}. Give another type."
        ) from error
    others = {entry.key: entry.value for entry in model.metadata_props if not entry.key.startswith(PREFIX)}
    properties = replace(record, optimized=model_type, parity={}).to_properties()
    onnx.helper.set_model_props(optimised, {**others, **properties})
    graph = ir.from_proto(optimised)
    graph.opset_imports.setdefault(_CONTRIB, 1)  # the optimiser names it nowhere
    save_model(graph, path)
    after = census(optimised)
    fused = Counter(after) - Counter(before)
    return OptimizationResult(Path(path), model_type, dict(fused), (sum(before.values()), sum(after.values())))
