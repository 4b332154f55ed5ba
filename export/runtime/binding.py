"""Running a session on torch tensors where they are, without copies."""

from collections.abc import Mapping

import numpy as np
import onnxruntime
import torch
import torch.utils.dlpack
from torch import Tensor

from lit_gelu.export.runtime.ports import Array, Port, named_sizes, onnx_number, session_ports

_NO_SYNC = "disable_synchronize_execution_providers"  # of a run: do not wait for the device at its end
GRAPH_ID = "gpu_graph_id"  # of a run: which CUDA graph is captured or replayed; -1 for none


def run_options(device: torch.device, graph_id: int = -1) -> onnxruntime.RunOptions | None:
    """Return the options of a run, -1 for no CUDA graph; on CUDA it is queued, and returns before it is done."""
    # onnxruntime looks the CUDA graph's number up in every bound run with options, and throws and catches an exception
    # where it is missing (30 microseconds, more than a small net takes), so it is always there.
    if device.type != "cuda":
        return None
    options = onnxruntime.RunOptions()
    options.add_run_config_entry(_NO_SYNC, "1")
    options.add_run_config_entry(GRAPH_ID, str(graph_id))
    return options


class TensorRunner:
    """Runs a session on torch tensors that lie on its device, without copies.

    Inputs are read where they are. Outputs are written into memory of torch's own allocator where the file tells their
    shape by the inputs' (as every file of `export_onnx` does); others are allocated by onnxruntime, and on CUDA
    copied, since its memory does not outlive the session. Each call has its own binding, so that threads do not meet.
    """

    def __init__(self, session: onnxruntime.InferenceSession, device: torch.device) -> None:
        self.session = session
        self.device = device
        self.inputs, self.outputs = session_ports(session)
        self.input_names, self.output_names = tuple(self.inputs), list(self.outputs)
        self._options = run_options(device)
        self._nothing = torch.zeros(1, device=device)  # an address for tensors without elements: theirs is 0
        self._shapes_hold = True

    def placed(self, given: Mapping[str, Array]) -> list[Tensor]:
        """Run the session on what can be made such tensors."""
        return self({name: as_tensor_on(self.device, value) for name, value in given.items()})

    def __call__(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        """Run the session on contiguous tensors of the file's dtypes, by name, on its device."""
        sizes = named_sizes(self.inputs, {name: tensor.shape for name, tensor in tensors.items()})
        shapes = {name: port.sized(sizes) if self._shapes_hold else None for name, port in self.outputs.items()}
        try:
            return self._run(tensors, shapes)
        except Exception as error:
            # A file may name a size wrongly: onnxruntime only warns of that, unless it is to write into that shape.
            if "computed output shape" not in str(error) or all(shape is None for shape in shapes.values()):
                raise
            self._shapes_hold = False
            return self._run(tensors, dict.fromkeys(self.outputs))

    def _run(self, tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...] | None]) -> list[Tensor]:
        """Run with outputs of known shapes in torch's memory, the others in onnxruntime's."""
        binding = self.session.io_binding()
        for name, tensor in tensors.items():
            self.bind(binding, self.inputs[name], tensor, is_output=False)
        made: dict[str, Tensor] = {}
        for name, port in self.outputs.items():
            shape = shapes[name]
            if shape is None or 0 in shape:
                binding.bind_output(name, self.device.type, self.device.index or 0)
            else:
                made[name] = torch.empty(shape, dtype=port.dtype, device=self.device)
                self.bind(binding, port, made[name], is_output=True)
        self.session.run_with_iobinding(binding, self._options)
        if len(made) == len(self.outputs):
            return list(made.values())
        values = dict(zip(self.outputs, binding.get_outputs(), strict=True))
        return [made[name] if name in made else self._taken(port, values[name]) for name, port in self.outputs.items()]

    def bind(self, binding: onnxruntime.IOBinding, port: Port, tensor: Tensor, *, is_output: bool) -> None:
        """Bind the memory of a contiguous tensor, which the caller keeps alive until the run is over."""
        method = binding.bind_output if is_output else binding.bind_input
        address = tensor.data_ptr() or self._nothing.data_ptr()
        place = self.device.type, self.device.index or 0
        method(port.name, *place, onnx_number(port.type_name), tuple(tensor.shape), address)

    def _taken(self, port: Port, value: onnxruntime.OrtValue) -> Tensor:
        """Return an output that onnxruntime allocated as a tensor."""
        tensor: Tensor = torch.utils.dlpack.from_dlpack(value)
        if port.dtype == torch.bool:
            tensor = tensor.view(torch.bool)  # onnxruntime hands Booleans over as bytes
        return tensor.clone() if self.device.type == "cuda" else tensor


def as_tensor_on(device: torch.device, value: Array) -> Tensor:
    """Return a contiguous tensor on a device, without gradients; the value's own memory where that can be."""
    if isinstance(value, np.ndarray):
        in_place = value.flags.writeable and all(stride >= 0 for stride in value.strides)
        value = torch.from_numpy(value if in_place else value.copy())
    elif value.requires_grad:
        value = value.detach()
    return (value if value.device == device else value.to(device)).resolve_neg().contiguous()
