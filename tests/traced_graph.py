"""A traced graph, of which every lowering gets a copy: one export serves every target, dtype and policy."""

import onnx_ir as ir

from lit_gelu.export.copying import evaluation_copy, trial_run
from lit_gelu.export.inputs import FlatModule, batch_sizes, take_apart
from lit_gelu.export.lowering.lowering_table import mark
from lit_gelu.export.lowering.replace import lower
from lit_gelu.export.metadata import ExportOptions
from lit_gelu.export.trace import trace


class TracedGraph:
    """What `export_onnx` has before it lowers."""

    def __init__(self, model):
        twin = evaluation_copy(model)
        flat = FlatModule(twin, take_apart(twin, model.example_input_array))
        trial = trial_run(flat)
        self.marked = mark(twin)
        self.model = model
        self._proto = ir.to_proto(trace(flat, trial, 20, batch_sizes(flat.call)))

    def lowered(self, target="portable", dtype="fp32", policy="strict", lowering="auto", opset=None, **others):
        graph = ir.from_proto(self._proto)
        options = ExportOptions.checked(
            target=target, dtype=dtype, policy=policy, lowering=lowering, opset=opset, **others
        )
        return graph, lower(graph, self.marked, options)
