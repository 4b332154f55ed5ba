"""ExecuTorch programs with the operators and delegates of its Python package."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from lit_gelu.audit.adapters.runtime_file import Array, InputPort, RuntimeFile, is_activation
from lit_gelu.errors import ModelFileError
from lit_gelu.extras import need

_DTYPES = {3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64", 11: "bool", 15: "bfloat16"}  # by number


def opened(path: Path) -> RuntimeFile:
    """Open a ``.pte`` file and its method ``forward``. Open sizes are the largest that it has room for."""
    executorch = need("executorch.runtime", extra="executorch", what=f"Opening {path.name}")
    program = executorch.Runtime.get().load_program(path)
    if "forward" not in program.method_names:
        raise ModelFileError(f"{path.name} has no method 'forward', only {sorted(program.method_names)}. Export it so.")
    method = program.load_method("forward")
    metas = [method.metadata.input_tensor_meta(index) for index in range(method.metadata.num_inputs())]
    ports = [
        InputPort(f"input {index}", tuple(meta.sizes()), _DTYPES.get(meta.dtype(), f"type {meta.dtype()}"))
        for index, meta in enumerate(metas)
    ]

    def execute(arrays: Sequence[Array]) -> list[Array]:
        tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
        return [output.numpy().copy() for output in method.execute(tensors)]

    def activations() -> list[tuple[str, str]]:
        # Texts among an operator's arguments are its form. What a delegate computes, the program does not name.
        reader = need("executorch.exir._serialize._program", extra="executorch", what=f"Reading {path.name}")
        plans = reader.deserialize_pte_binary(path.read_bytes()).program.execution_plan
        plan = next(plan for plan in plans if plan.name == "forward")
        rows = []
        for place, call in enumerate(row.instr_args for chain in plan.chains for row in chain.instructions):
            if hasattr(call, "delegate_index"):
                rows.append((str(place), [plan.delegates[call.delegate_index].id]))
            elif hasattr(call, "op_index"):
                texts = [getattr(plan.values[index].val, "string_val", "") for index in call.args]
                rows.append((str(place), [plan.operators[call.op_index].name, *filter(None, texts)]))
        return [(place, " ".join(texts)) for place, texts in rows if is_activation(texts[0])]

    return RuntimeFile(path, f"executorch {version('executorch')}", tuple(ports), execute, activations)
