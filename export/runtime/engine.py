"""An opened file: its session, its device, its stream, and how a call goes through them."""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import Tensor

from lit_gelu.export.errors import ModelFileError, ProviderError
from lit_gelu.export.runtime.binding import TensorRunner, as_array, as_tensor_on
from lit_gelu.export.runtime.buckets import checked_buckets
from lit_gelu.export.runtime.model_file import ModelFile, read_model_file
from lit_gelu.export.runtime.on_cuda import CudaRunner, require_no_capture
from lit_gelu.export.runtime.placement import named, placement_of, without_shape_arithmetic
from lit_gelu.export.runtime.ports import Array
from lit_gelu.export.runtime.providers import CUDA, ON_CUDA_DEVICES, Provider, checked_providers, default_providers
from lit_gelu.export.runtime.session import open_session
from lit_gelu.export.runtime.settings import provider_options, session_options
from lit_gelu.export.runtime.streams import ComputeStream
from lit_gelu.export.runtime.tuning_file import TuningChoice, read_choice, this_key


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
    batch_buckets: tuple[int, ...]

    def checked_providers(self, model: ModelFile) -> dict[str, dict[str, str]]:
        """Return the options, by name, of the providers that were given, or of the default one."""
        if self.providers is not None:
            return checked_providers(self.providers, self.provider_options)
        # Behind CUDA no CPU: nobody asked for a part of the file to run there.
        return checked_providers(default_providers(tf32=model.sixteen_bit)[:1], self.provider_options)

    def choice(self, first: str, options: Mapping[str, str], device: torch.device) -> TuningChoice | None:
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
    """An opened file."""

    session: onnxruntime.InferenceSession
    device: torch.device
    runner: TensorRunner
    on_cuda: CudaRunner | None
    tuning: TuningChoice | None
    process: int = field(default_factory=os.getpid)

    @property
    def buckets(self) -> tuple[int, ...]:
        """The batch sizes of its CUDA graphs."""
        return self.on_cuda.bucketed.buckets if self.on_cuda and self.on_cuda.bucketed else ()

    def run_arrays(self, given: Mapping[str, np.ndarray]) -> list[Any]:
        """Run on arrays."""
        if self.on_cuda is not None:
            return self.on_cuda.run_arrays(given)
        found: list[Any] = self.session.run(self.runner.output_names, given)
        return found

    def run_tensors(self, given: Mapping[str, Array]) -> list[Tensor]:
        """Run on tensors, moved to the device if need be; outputs lie there, in the order of the current stream."""
        if self.on_cuda is not None:
            return self.on_cuda(given)
        if self.runner.takes_arrays:  # in the same memory, in a third of a binding's time
            feed = {name: value if isinstance(value, np.ndarray) else as_array(value) for name, value in given.items()}
            return list(map(torch.from_numpy, self.session.run(self.runner.output_names, feed)))
        return self.runner({name: as_tensor_on(self.device, value) for name, value in given.items()})


def open_engine(request: Request) -> Engine:
    """Open a file; errors are those of `OnnxPredictor`."""
    model = read_model_file(request.path)
    checked = request.checked_providers(model)
    first = next(iter(checked))
    device = _device(first, checked[first])
    choice = request.choice(first, checked[first], device)
    settings = choice.settings if choice else {}
    buckets = request.batch_buckets or checked_buckets(settings.get("batch_buckets", ()))
    if buckets and (first != CUDA or device.type != "cuda"):
        raise ProviderError(
            f"batch_buckets={buckets} are CUDA graphs; here {first} comes first, and torch "
            f"{'has' if torch.cuda.is_available() else 'finds no'} CUDA device. Leave them out."
        )
    checked[first].update(provider_options(settings))
    used = settings if choice else None
    if device.type != "cuda":
        session = _open(request, model, checked, used, graphs=False)
        return Engine(session, device, TensorRunner(session, device), None, choice)
    require_no_capture()
    stream = _hand_over_stream(checked, device)
    if buckets:
        checked[CUDA]["enable_cuda_graph"] = "1"
    with torch.cuda.device(device):  # onnxruntime sets the thread's current device, and leaves it so
        session = _open(request, model, checked, used, graphs=bool(buckets))
        on_cuda = CudaRunner(session, device, stream, buckets, padding=bool(request.batch_buckets))
    return Engine(session, device, on_cuda.runner, on_cuda, choice)


def _device(provider: str, options: Mapping[str, str]) -> torch.device:
    """Return the device of a provider's tensors; the host where torch has no CUDA, though onnxruntime may."""
    if provider not in ON_CUDA_DEVICES or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(options.get("device_id", torch.cuda.current_device())))


def _hand_over_stream(checked: dict[str, dict[str, str]], device: torch.device) -> ComputeStream:
    """Choose the stream, and tell the providers that work on it."""
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
            f"{where} cannot run as CUDA graphs, which need every node on CUDA. Leave batch_buckets out, or export the "
            f"file for CUDA. {error}"
        ) from error
    if graphs and (nodes := without_shape_arithmetic(model.path, placement_of(session).outside(CUDA))):
        raise ProviderError(
            f"{where} cannot run as CUDA graphs: {len(nodes)} nodes are not on CUDA: {named(nodes)}. Leave "
            "batch_buckets out, or export the file for CUDA."
        )
    return session


def one_or_all(outputs: Sequence[Any]) -> Any:
    """Return a single output itself, several as a tuple."""
    return outputs[0] if len(outputs) == 1 else tuple(outputs)
