"""`OnnxPredictor`: runs an exported file on numpy arrays or torch tensors."""

import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime

from lit_gelu.errors import ModelFileError, ModelInputError, ProviderError
from lit_gelu.export.runtime.model_file import (
    Array,
    bind_names,
    is_tensor,
    named_sizes,
    read_model_file,
    require_fit,
    session_ports,
)
from lit_gelu.export.runtime.placement import Placement, named, placement_of, without_shape_arithmetic
from lit_gelu.export.runtime.session import (
    CPU,
    CUDA,
    ON_CUDA_DEVICES,
    Provider,
    checked_providers,
    has_cuda_device,
    open_session,
)

if TYPE_CHECKING:
    import torch

    from lit_gelu.export.runtime.cuda import CudaRunner

_HOST = "cpu"
# Bytes of input and output up to which copies take less time than what `InferenceSession.run` does for new memory.
_SMALL = 64 * 1024
_REPEATS = 8  # calls of one shape behind which memory is bound: to bind it takes as long as some calls save
_of_parents: list[Any] = []  # never freed: a session's destructor waits for threads that a forked process has not
# One entry for each fork since this was loaded. Their number tells processes apart sooner than a process id does.
_forks: list[int] = []
if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=lambda: _forks.append(os.getpid()))


class OnnxPredictor:
    """Runs an exported file on numpy arrays or torch tensors, in plain Python or in a LightningModule's `predict_step`.

    Arrays give arrays, tensors give tensors. Tensors that lie on the provider's device are read and written where they
    are (but for small ones on the CPU, where a copy takes less time), and on CUDA in the order of the caller's current
    stream, without waiting for the device.
    Several threads may call it; of a predictor with CUDA graphs the calls take turns, and those of the thread that
    opened the file alone are graphs. It can be pickled, unless it has ``sess_options``, and survives a fork: a process
    that is new to it opens the file again.

    Args:
        path: The file.
        providers: As ``onnxruntime.InferenceSession`` takes them; by default CUDA where it works, else the CPU. Without
            the CPU in the list, a node that the first provider has no kernel for is an error.
        sess_options: As ``onnxruntime.InferenceSession`` takes them; an entry that has the placement recorded is added.
        batch_buckets: Batch sizes, for CUDA alone: each becomes one CUDA graph. A call is padded with 0 to the smallest
            that holds it, and runs without a graph if none does; all sizes but the batch must be fixed. The graphs are
            captured here: no other thread may use CUDA meanwhile.

    Raises:
        ModelFileError: If the file or its weights are missing or damaged.
        ModelInputError: If the file has open sizes beside the batch, and ``batch_buckets`` are given.
        ProviderError: If a provider does not exist here, has no such option, or did not take the whole file.

    Example:
        >>> import tempfile, pathlib, numpy as np, torch
        >>> from lit_gelu.export import export_onnx
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "gelu.onnx"
        >>> _ = export_onnx(torch.nn.GELU(), path, torch.zeros(2))
        >>> predictor = OnnxPredictor(path, providers=["CPUExecutionProvider"])
        >>> predictor(np.array([-1.0, 0.0, 1.0], dtype=np.float32)).round(4)
        array([-0.1587,  0.    ,  0.8413], dtype=float32)
        >>> predictor(torch.tensor([1.0]))
        tensor([0.8413])
        >>> print(predictor.placement)
        CPUExecutionProvider  1 node   Gelu
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        providers: Sequence[Provider] | None = None,
        sess_options: onnxruntime.SessionOptions | None = None,
        *,
        batch_buckets: Sequence[int] = (),
    ) -> None:
        self.path = Path(path)
        if any(size < 1 for size in batch_buckets):
            raise ProviderError(f"batch_buckets={list(batch_buckets)!r} are no sizes. Give numbers from 1 on.")
        self._arguments: dict[str, Any] = {
            "path": self.path.absolute(),  # for another process, which may be in another folder
            "providers": providers if providers is None or isinstance(providers, str) else list(providers),
            "sess_options": sess_options,
            "batch_buckets": sorted(set(batch_buckets)),
        }
        self._opening = threading.Lock()
        self._open(**{**self._arguments, "path": self.path})

    def _open(
        self,
        path: Path,
        providers: list[Provider] | None,
        sess_options: onnxruntime.SessionOptions | None,
        batch_buckets: list[int],
    ) -> None:
        """Open the session, on a CUDA device with its stream and graphs."""
        model = read_model_file(path)
        checked = checked_providers(providers, tf32=model.sixteen_bit)
        first, options = next(iter(checked.items()))
        device = _device(first, options)
        if batch_buckets and (first != CUDA or device == _HOST):
            raise ProviderError(
                f"batch_buckets={batch_buckets} are CUDA graphs; here {first} comes first, and torch "
                f"{'has' if has_cuda_device() else 'finds no'} CUDA device. Leave them out."
            )
        self._device, self._cuda = device, None
        arguments: dict[str, Any] = {"sess_options": sess_options, "model": model}
        if device == _HOST:
            self._session = open_session(path, list(checked.items()), **arguments)
        else:
            self._cuda = _on_cuda(path, checked, device, arguments, batch_buckets)
            self._session = self._cuda.runner.session
        self.ports, self.output_ports = session_ports(self._session)
        self._recurrent = model.recurrent and device == _HOST
        self._names, self._outputs = list(self.ports), list(self.output_ports)
        ports = [*self.ports.values(), *self.output_ports.values()]
        types = {port.type_name for port in ports}
        self._takes_arrays = self._cuda is None and "tensor(bfloat16)" not in types
        # Of uint64, lists and texts `_as_tensor` knows more than torch does.
        self._has_plain_types = all(p.array_dtype is not None and p.type_name != "tensor(uint64)" for p in ports)
        named = [size for port in self.ports.values() for size in port.shape if isinstance(size, str)]
        # onnxruntime refuses another dtype or shape itself, but not these two.
        self._check_first = self._recurrent or len(set(named)) < len(named)
        # An input that is an output too would stay what it was in the first call.
        is_pair = len(self._names) == len(self._outputs) == 1 and self._names != self._outputs
        self._reuses_memory = is_pair and self._has_plain_types and self._session.get_providers() == [CPU]
        # Arrays for input and output that no call is using, each pair with what runs the session on it.
        self._memory: list[tuple[np.ndarray, np.ndarray, Callable[[], None]]] = []
        self._last_shapes: list[tuple[int, ...]] = []
        self._fork = len(_forks)  # the last: from now on nobody waits for this

    @property
    def session(self) -> onnxruntime.InferenceSession:
        """The session of onnxruntime, opened anew in a process that was forked, where its threads are not."""
        if self._fork != len(_forks):
            with self._opening:
                if self._fork != len(_forks):
                    _of_parents.append((self._session, self._cuda))
                    self._open(**self._arguments)
        return self._session

    @property
    def device(self) -> "torch.device":
        """Where the file runs: tensors that lie elsewhere are moved."""
        import torch

        return torch.device(self._device)

    @property
    def providers(self) -> list[str]:
        """The execution providers that run the file, the first one first."""
        return list(self.session.get_providers())

    @property
    def placement(self) -> Placement:
        """Which provider runs which node: ``print(predictor.placement)`` is a table with counts."""
        return placement_of(self.session)

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs, in order."""
        return list(self._names)

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs, in order."""
        return list(self._outputs)

    @property
    def metadata(self) -> dict[str, str]:
        """The file's metadata properties."""
        return dict(self.session.get_modelmeta().custom_metadata_map)

    def __repr__(self) -> str:
        """Return the file and where it runs."""
        sizes = self._arguments["batch_buckets"]
        graphs = f", batch_buckets={sizes}" if sizes else ""
        return f"OnnxPredictor({str(self.path)!r}, {', '.join(self.providers)}{graphs})"

    def __call__(self, *inputs: Array | Mapping[str, Array], **named_inputs: Array) -> Any:
        """Run the file.

        Args:
            *inputs: Arrays or tensors in the order of ``input_names``, any batch size; or one mapping of them by name.
            **named_inputs: Inputs by name.

        Returns:
            The output, or a tuple of them if there are several: tensors on the device of the first tensor if any input
            is a tensor, else arrays. On CUDA they may still be in the making; the current stream knows.

        Raises:
            ModelInputError: If an input is missing or unknown, or does not fit the file.
            ModelFileError: If onnxruntime fails while it runs the file.
            ProviderError: If torch captures a CUDA graph, of which this cannot be a part.
        """
        session = self.session
        alone: Any = inputs[0] if len(inputs) == len(self._names) == 1 and not named_inputs else None
        if alone is not None and self._memory and (output := self._run_in_known_memory(alone)) is not None:
            return output
        if isinstance(alone, np.ndarray) or is_tensor(alone):  # the rest takes as long as a small net's run
            values: Mapping[str, Any] = {self._names[0]: alone}
            tensor = None if isinstance(alone, np.ndarray) else alone
        else:
            values = bind_names(self._names, inputs, named_inputs)
            tensor = next(filter(is_tensor, values.values()), None)
        try:
            if self._check_first or not self._takes_arrays:
                self._require_fit(values)
            if self._cuda is not None or (tensor is not None and not self._takes_arrays):
                outputs = self._run_on_device(session, values, tensor)
            else:
                outputs = self._run_on_host(session, values, tensor)
        except (ModelInputError, ProviderError):
            raise
        except Exception as error:
            self._require_fit(values)
            raise ModelFileError(f"onnxruntime failed while it ran {str(self.path)!r}: {error}") from error
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _require_fit(self, values: Mapping[str, Array]) -> None:
        """Refuse inputs that do not fit the file, or each other."""
        for name, port in self.ports.items():
            value = values[name]
            require_fit(port, value, raw="lit_gelu.preprocessing" in self.metadata)
            if self._recurrent and 0 in value.shape:
                raise ModelInputError(
                    f"Input {name!r} has shape {tuple(value.shape)}, which holds no values, and onnxruntime's LSTM and "
                    "GRU on the CPU end the whole process on such. Give one row at least."
                )
        named_sizes(self.ports, {name: value.shape for name, value in values.items()})

    def _run_in_known_memory(self, value: Any) -> Array | None:
        """Return the output; ``None``, and the memory is dropped, where the value does not fit it or the run fails."""
        try:
            x, y, run = memory = self._memory.pop()
            torch = None if isinstance(value, np.ndarray) else sys.modules["torch"]
            array = value if torch is None else torch.Tensor.numpy(value)
            if array.shape != x.shape or array.dtype != x.dtype:
                return None
            np.copyto(x, array)
            run()
            output: Array = y.copy() if torch is None else torch.from_numpy(y.copy())
        except Exception:  # noqa: BLE001 - another thread has the memory, or the value is wrong, as a plain run says
            return None
        self._memory.append(memory)
        return output

    def _run_on_host(
        self, session: onnxruntime.InferenceSession, values: Mapping[str, Any], tensor: "torch.Tensor | None"
    ) -> list[Any]:
        """Run on arrays, or on tensors as arrays of the same memory; outputs go where the first tensor is."""
        arrays: Mapping[str, Any] = values
        if tensor is not None:
            arrays = {n: v if isinstance(v, np.ndarray) else v.numpy(force=True) for n, v in values.items()}
        for array in arrays.values():
            if not array.dtype.isnative:  # onnxruntime takes another processor's byte order for its own
                self._require_fit(values)
        outputs: list[Any] = session.run(self._outputs, arrays)
        if self._reuses_memory and sum(array.nbytes for array in (*arrays.values(), *outputs)) <= _SMALL:
            self._bind_memory(session, *arrays.values(), *outputs)
        if tensor is None:
            return outputs
        outputs = list(map(sys.modules["torch"].from_numpy if self._has_plain_types else _as_tensor, outputs))
        return outputs if tensor.is_cpu else [y.to(tensor.device) if is_tensor(y) else y for y in outputs]

    def _bind_memory(self, session: onnxruntime.InferenceSession, array: np.ndarray, output: np.ndarray) -> None:
        """Bind memory for further calls of a shape, if the last ones had it and it says the output's shape."""
        self._last_shapes = [*self._last_shapes[1 - _REPEATS :], array.shape]
        if self._memory or self._last_shapes.count(array.shape) < _REPEATS:
            return
        self._last_shapes = []
        sizes: dict[Any, int] = dict(zip(self.ports[self._names[0]].shape, array.shape, strict=False))
        if output.shape == self.output_ports[self._outputs[0]].sized(sizes) and array.size and output.size:
            x, y = np.empty(array.shape, array.dtype), np.empty(output.shape, output.dtype)
            binding, value_of = session.io_binding(), onnxruntime.OrtValue.ortvalue_from_numpy  # which copies nothing
            binding.bind_ortvalue_input(self._names[0], value_of(x))
            binding.bind_ortvalue_output(self._outputs[0], value_of(y))
            self._memory.append((x, y, partial(session.run_with_iobinding, binding)))

    def _run_on_device(
        self, session: onnxruntime.InferenceSession, values: Mapping[str, Array], tensor: "torch.Tensor | None"
    ) -> list[Any]:
        """Run on CUDA, or on tensors of a dtype that arrays have not; they are moved there if need be, and back."""
        if tensor is None and self._cuda is not None:
            arrays: dict[str, Any] = dict(values)
            return self._cuda.run_arrays(arrays)
        from lit_gelu.export.runtime.cuda import TensorRunner, as_tensor_on

        if self._cuda is not None:
            results = self._cuda(values)
        else:
            on_host = {name: as_tensor_on(self.device, value) for name, value in values.items()}
            results = TensorRunner(session, self.device)(on_host)
        there = self.device if tensor is None else tensor.device
        return [result if result.device == there else result.to(there) for result in results]

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what opens the same file in another process."""
        return partial(type(self), **self._arguments), ()


def _as_tensor(output: Any) -> Any:
    """Return an output as a tensor; lists of arrays, and texts, stay what they are."""
    if isinstance(output, list) or output.dtype.kind == "O":
        return output
    # onnxruntime's uint64 is numpy's ulonglong, which torch does not take for it; a view of it is.
    return sys.modules["torch"].from_numpy(output.view(output.dtype.str))


def _device(provider: str, options: Mapping[str, str]) -> str:
    """Return the device of a provider's tensors; the host where there is no torch with CUDA, though onnxruntime may."""
    if provider not in ON_CUDA_DEVICES or importlib.util.find_spec("torch") is None:
        return _HOST
    import torch

    if not torch.cuda.is_available():
        return _HOST
    return f"cuda:{int(options.get('device_id', torch.cuda.current_device()))}"


def _on_cuda(
    path: Path, checked: dict[str, dict[str, str]], device: str, arguments: Mapping[str, Any], sizes: Sequence[int]
) -> "CudaRunner":
    """Open a session on the stream that is current, with CUDA graphs only if all of it runs on CUDA."""
    import torch

    from lit_gelu.export.runtime.cuda import ComputeStream, CudaRunner, require_no_capture

    require_no_capture()
    on = torch.device(device)
    handle = next((o["user_compute_stream"] for o in checked.values() if "user_compute_stream" in o), "0")
    stream = ComputeStream(on, int(handle))
    for name in ON_CUDA_DEVICES & set(checked):
        checked[name].setdefault("device_id", str(on.index))
        checked[name]["user_compute_stream"] = str(stream.stream.cuda_stream)
    if sizes:
        checked[CUDA]["enable_cuda_graph"] = "1"
    with torch.cuda.device(on):  # onnxruntime sets the thread's current device, and leaves it so
        session = open_session(path, list(checked.items()), **arguments)
        nodes = without_shape_arithmetic(path, placement_of(session).outside(CUDA)) if sizes else ()
        if nodes:
            raise ProviderError(
                f"{str(path)!r} cannot run as CUDA graphs: {len(nodes)} nodes are not on CUDA: {named(nodes)}. Leave "
                "batch_buckets out, or export the file for CUDA."
            )
        return CudaRunner(session, on, stream, sizes)
