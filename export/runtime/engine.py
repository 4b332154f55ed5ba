"""An opened file: its session, its device, its stream, and how a call goes through them."""

import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime

from lit_gelu.export.errors import ModelFileError, ModelInputError, ProviderError
from lit_gelu.export.runtime.model_file import ModelFile, read_model_file
from lit_gelu.export.runtime.placement import named, placement_of, without_shape_arithmetic
from lit_gelu.export.runtime.ports import Array, Port, session_ports, shared_sizes
from lit_gelu.export.runtime.providers import (
    CUDA,
    ON_CUDA_DEVICES,
    Provider,
    checked_providers,
    default_providers,
    has_cuda_device,
)
from lit_gelu.export.runtime.session import open_session
from lit_gelu.export.runtime.settings import BATCH, Buckets, named_buckets, provider_options, session_options
from lit_gelu.export.runtime.tuning_file import TuningChoice, read_choice, this_key

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from lit_gelu.export.runtime.binding import TensorRunner
    from lit_gelu.export.runtime.on_cuda import CudaRunner
    from lit_gelu.export.runtime.streams import ComputeStream

HOST = "cpu"


class TuningFileWarning(UserWarning):
    """The file beside a model that holds what was tuned cannot be used."""


@dataclass(frozen=True)
class Request:
    """What `OnnxPredictor` was asked for; see there."""

    path: Path
    providers: Sequence[Provider] | None
    sess_options: onnxruntime.SessionOptions | None
    provider_options: list[Mapping[str, Any]] | None
    tuning: bool | TuningChoice
    batch_buckets: Sequence[int]
    buckets: Buckets
    padding: Mapping[str, float]

    def checked_providers(self, model: ModelFile) -> dict[str, dict[str, str]]:
        """Return the options, by name, of the providers that were given, or of the default one."""
        if self.providers is not None:
            return checked_providers(self.providers, self.provider_options)
        # Behind CUDA no CPU: nobody asked for a part of the file to run there.
        return checked_providers(default_providers(tf32=model.sixteen_bit)[:1], self.provider_options)

    def choice(self, first: str, options: Mapping[str, str], device: str) -> TuningChoice | None:
        """Return the tuning that is used: none where the caller gave options, which come first."""
        if isinstance(self.tuning, TuningChoice):
            return self.tuning
        explicit = self.providers is not None or self.provider_options is not None
        if not self.tuning or self.sess_options is not None or (explicit and set(options) - {"device_id"}):
            return None
        key = this_key(first, device)
        try:
            return None if key is None else read_choice(self.path, key)
        except ModelFileError as error:  # the model itself is whole
            warnings.warn(f"{self.path} runs untuned. {error}", TuningFileWarning, stacklevel=2)
            return None


@dataclass(frozen=True)
class Engine:
    """An opened file. Torch is imported for tensors, and where it is installed for CUDA, whose streams it knows."""

    session: onnxruntime.InferenceSession
    device: str  # in torch's words
    on_cuda: "CudaRunner | None"
    tuning: TuningChoice | None
    never_empty: frozenset[str] = frozenset()  # inputs without whose rows a call would end the process
    process: int = field(default_factory=os.getpid)

    inputs: dict[str, Port] = field(init=False)
    outputs: dict[str, Port] = field(init=False)
    input_names: tuple[str, ...] = field(init=False)
    output_names: list[str] = field(init=False)
    takes_arrays: bool = field(init=False)  # whether numpy has every element type
    shared: dict[str, list[tuple[str, int]]] = field(init=False)  # where names of sizes stand that stand twice

    def __post_init__(self) -> None:
        inputs, outputs = session_ports(self.session)
        every = (*inputs.values(), *outputs.values())
        made = {"inputs": inputs, "outputs": outputs, "input_names": tuple(inputs), "output_names": list(outputs)}
        takes_arrays = all(port.array_dtype is not None for port in every)
        vars(self).update(made, takes_arrays=takes_arrays, shared=shared_sizes(inputs))

    @cached_property
    def torch_device(self) -> "torch.device":
        """Where inputs are read and outputs written without copies."""
        import torch

        return torch.device(self.device)

    @cached_property
    def runner(self) -> "TensorRunner":
        """Runs the session on tensors where they are."""
        from lit_gelu.export.runtime.binding import TensorRunner

        return TensorRunner(self.session, self.torch_device) if self.on_cuda is None else self.on_cuda.runner

    @property
    def buckets(self) -> Buckets:
        """The sizes of its CUDA graphs."""
        return self.on_cuda.bucketed.buckets if self.on_cuda and self.on_cuda.bucketed else {}

    @cached_property
    def quick(self) -> Callable[[Any], Any]:
        """Run the file on an array or tensor, in a third of the time around it; ``None`` where that takes more care."""
        alone = len(self.inputs) == len(self.outputs) == 1 and not self.shared
        if self.on_cuda is None and self.takes_arrays and alone:
            name = next(iter(self.inputs))
            return _run_of_one(self.session, name, self.output_names, self.process, name in self.never_empty)
        return lambda _: None

    def run_arrays(self, given: Mapping[str, np.ndarray]) -> list[Any]:
        """Run on arrays."""
        if self.on_cuda is not None:
            return self.on_cuda.run_arrays(given)
        found: list[Any] = self.session.run(self.output_names, given)
        return found

    def run_tensors(self, given: Mapping[str, Array]) -> "list[Tensor]":
        """Run on tensors, moved to the device if need be; outputs lie there, in the order of the current stream."""
        if self.on_cuda is not None:
            return self.on_cuda(given)
        if self.takes_arrays:  # in the same memory, in a third of a binding's time
            feed = {name: value if isinstance(value, np.ndarray) else as_array(value) for name, value in given.items()}
            return list(map(sys.modules["torch"].from_numpy, self.session.run(self.output_names, feed)))
        return self.runner.placed(given)


def _run_of_one(
    session: onnxruntime.InferenceSession, name: str, outputs: list[str], process: int, never_empty: bool
) -> Callable[[Any], Any]:
    """Return what runs a file of one input and one output in host memory, without bindings and names."""
    this_process = os.getpid
    ways: dict[type, Callable[[np.ndarray], Any]] = {np.ndarray: _same}

    def run_one(value: Any) -> Any:
        # onnxruntime refuses another dtype or shape itself, but for numbers in the byte order of another processor.
        try:
            way = ways.get(type(value))
            if way is None or process != this_process():
                _learn_tensors(ways)
                return None
            array = value if way is _same else value.numpy()
            if (way is _same and not array.dtype.isnative) or (never_empty and 0 in array.shape):
                return None
            # A session's Python, around `_sess`, checks names again, in a tenth of a small net's time.
            return way(session._sess.run(outputs, {name: array}, None)[0])
        except Exception:  # noqa: BLE001  the longer way finds a remedy, or says what is wrong
            return None

    return run_one


def _same(array: np.ndarray) -> np.ndarray:
    """Return the array."""
    return array


def _learn_tensors(ways: dict[type, Callable[[np.ndarray], Any]]) -> None:
    """Add how a tensor's output is made, once somebody has imported torch."""
    if (torch := sys.modules.get("torch")) is not None and hasattr(torch, "from_numpy"):
        ways[torch.Tensor] = torch.from_numpy


def as_array(value: "Tensor") -> np.ndarray:
    """Return an array of the tensor's own memory; of a copy on the host where it lies elsewhere."""
    try:
        array: np.ndarray = value.numpy()
    except (RuntimeError, TypeError):  # gradients, a device, a negation that is still to be done; to ask costs time
        array = value.detach().cpu().resolve_neg().numpy()
    return array


def open_engine(request: Request) -> Engine:
    """Open a file; errors are those of `OnnxPredictor`."""
    model = read_model_file(request.path)
    checked = request.checked_providers(model)
    first = next(iter(checked))
    device = _device(first, checked[first])
    choice = request.choice(first, checked[first], device)
    settings = choice.settings if choice else {}
    asked = named_buckets(request.batch_buckets, request.buckets)
    if request.padding and not asked:
        raise ModelInputError(
            f"padding={dict(request.padding)} says what stands behind a call in a bucket, and there are no buckets. "
            "Give buckets= or batch_buckets=, or leave padding out."
        )
    buckets = asked or named_buckets(settings.get("batch_buckets", ()), {})
    if buckets and (first != CUDA or device == HOST):
        given = f"buckets={request.buckets}" if request.buckets else f"batch_buckets={buckets[BATCH]}"
        raise ProviderError(
            f"{given} are CUDA graphs; here {first} comes first, and torch "
            f"{'has' if has_cuda_device() else 'finds no'} CUDA device. Leave them out."
        )
    checked[first].update(provider_options(settings))
    used = settings if choice else None
    if device == HOST:
        return Engine(_open(request, model, checked, used, graphs=False), device, None, choice, model.never_empty)
    import torch

    from lit_gelu.export.runtime.on_cuda import CudaRunner, require_no_capture

    require_no_capture()
    on = torch.device(device)
    stream = _hand_over_stream(checked, on)
    if buckets:
        checked[CUDA]["enable_cuda_graph"] = "1"
    with torch.cuda.device(on):  # onnxruntime sets the thread's current device, and leaves it so
        session = _open(request, model, checked, used, graphs=bool(buckets))
        on_cuda = CudaRunner(session, on, stream, buckets, request.padding if asked else None)
    return Engine(session, device, on_cuda, choice)


def _device(provider: str, options: Mapping[str, str]) -> str:
    """Return the device of a provider's tensors; the host where there is no torch with CUDA, though onnxruntime may."""
    if provider not in ON_CUDA_DEVICES or importlib.util.find_spec("torch") is None:
        return HOST
    import torch

    if not torch.cuda.is_available():
        return HOST
    return f"cuda:{int(options.get('device_id', torch.cuda.current_device()))}"


def _hand_over_stream(checked: dict[str, dict[str, str]], device: "torch.device") -> "ComputeStream":
    """Choose the stream, and tell the providers that work on it."""
    from lit_gelu.export.runtime.streams import ComputeStream

    given = {options["user_compute_stream"] for options in checked.values() if "user_compute_stream" in options}
    stream = ComputeStream(device, int(given.pop()) if given else None)
    for name in ON_CUDA_DEVICES & set(checked):
        checked[name].setdefault("device_id", str(device.index))
        checked[name].update(stream.provider_options())
    return stream


def _open(
    request: Request,
    model: ModelFile,
    checked: Mapping[str, Mapping[str, str]],
    settings: Mapping[str, Any] | None,
    *,
    graphs: bool,
) -> onnxruntime.InferenceSession:
    """Open the session; for CUDA graphs only if all of it runs on CUDA."""
    options = request.sess_options if settings is None else session_options(settings)
    disabled = (settings or {}).get("disabled_optimizers", ())
    where = repr(str(request.path))
    try:
        session = open_session(request.path, list(checked.items()), options, disabled_optimizers=disabled, model=model)
    except (ModelFileError, ProviderError) as error:
        if not graphs:
            raise
        raise ProviderError(
            f"{where} cannot run as CUDA graphs, which need every node on CUDA. Leave buckets out, or export the "
            f"file for CUDA. {error}"
        ) from error
    if graphs and (nodes := without_shape_arithmetic(model.path, placement_of(session).outside(CUDA))):
        raise ProviderError(
            f"{where} cannot run as CUDA graphs: {len(nodes)} nodes are not on CUDA: {named(nodes)}. Leave "
            "buckets out, or export the file for CUDA."
        )
    return session


def one_or_all(outputs: Sequence[Any]) -> Any:
    """Return a single output itself, several as a tuple."""
    return outputs[0] if len(outputs) == 1 else tuple(outputs)
