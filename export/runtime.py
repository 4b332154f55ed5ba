"""Running an exported file with onnxruntime: sessions that run where they were asked to, and `OnnxPredictor`."""

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors
from torch import Tensor

from lit_gelu.export.errors import ModelFileError, ModelInputError, ProviderError

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"

Provider = str | tuple[str, Mapping[str, Any]]
Array = np.ndarray | Tensor

_FILE_ERRORS = (
    ort_errors.InvalidProtobuf,
    ort_errors.InvalidGraph,
    ort_errors.NoSuchFile,
    ort_errors.NotImplemented,
    ort_errors.NoModel,
    ort_errors.InvalidArgument,
)
_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(int16)": np.int16,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}


def default_providers() -> list[Provider]:
    """Return CUDA where it works, with the CPU behind it, else the CPU.

    onnxruntime names the CUDA provider as available on machines without a GPU, and prints errors when it is asked for
    it there, so torch is asked first.

    Returns:
        Providers as ``onnxruntime.InferenceSession`` takes them. TF32 is off: it costs three decimal digits.
    """
    if torch.cuda.is_available() and CUDA in onnxruntime.get_available_providers():
        return [(CUDA, {"use_tf32": 0}), CPU]
    return [CPU]


def open_session(
    path: str | os.PathLike[str],
    providers: Sequence[Provider] | None = None,
    sess_options: onnxruntime.SessionOptions | None = None,
) -> onnxruntime.InferenceSession:
    """Open a file with onnxruntime, on the provider that was asked for or not at all.

    onnxruntime falls back to the CPU without a word when a provider's libraries are missing or an option is misspelt;
    here that is an error.

    Args:
        path: The file.
        providers: As ``onnxruntime.InferenceSession`` takes them; by default `default_providers`.
        sess_options: As ``onnxruntime.InferenceSession`` takes them.

    Returns:
        The session.

    Raises:
        ModelFileError: If the file is missing, damaged, or no model that onnxruntime can run.
        ProviderError: If a provider does not exist here, or did not take the session.
    """
    chosen = default_providers() if providers is None else list(providers)
    names = [_checked_provider(provider) for provider in chosen]
    if not names:
        raise ProviderError("providers=[] names no execution provider. Give providers=None for the default ones.")
    if not Path(path).is_file():
        raise ModelFileError(f"There is no file {str(path)!r}. Write it with lit_gelu.export.export_onnx.")
    if any(name != CPU for name in names):
        onnxruntime.preload_dlls()  # cuBLAS, cuDNN and cuRAND from their wheels; torch no longer loads all of them
    try:
        session = onnxruntime.InferenceSession(os.fspath(path), sess_options, providers=chosen)
    except _FILE_ERRORS as error:
        raise ModelFileError(
            f"onnxruntime cannot load {str(path)!r}: it is damaged, no ONNX model that it knows, or one of its own "
            f"optimisations fails (then a lower graph_optimization_level in sess_options helps): {error}"
        ) from error
    except (ort_errors.Fail, ort_errors.EPFail, ort_errors.RuntimeException, RuntimeError) as error:
        raise ProviderError(f"onnxruntime cannot open {str(path)!r} on {', '.join(names)}: {error}") from error
    if session.get_providers()[0] != names[0]:
        raise ProviderError(
            f"{names[0]} was asked for, but onnxruntime fell back to {session.get_providers()[0]}: the provider's "
            "libraries cannot be loaded, there is no device, or one of its options is misspelt. Mend that, or pass "
            "providers=['CPUExecutionProvider']."
        )
    return session


def provider_name(provider: Provider) -> str:
    """Return the name of a provider, given with or without options.

    Args:
        provider: As ``onnxruntime.InferenceSession`` takes it.

    Returns:
        Its name.

    Example:
        >>> provider_name(("CUDAExecutionProvider", {"use_tf32": 0}))
        'CUDAExecutionProvider'
    """
    return provider if isinstance(provider, str) else str(provider[0]) if provider else ""


def _checked_provider(provider: Provider) -> str:
    """Return a provider's name if this installation has it."""
    available = onnxruntime.get_available_providers()
    name = provider_name(provider)
    if name in available:
        return name
    near = difflib.get_close_matches(name, available, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ProviderError(
        f"Unknown execution provider {name!r}.{hint} In this installation: {', '.join(map(repr, available))}."
    )


class OnnxPredictor:
    """Runs an exported file on numpy arrays or torch tensors. Can be called from several threads.

    A file that was exported with ``preprocessing=`` takes raw pixels, ``uint8``.

    Args:
        path: The file.
        providers: As ``onnxruntime.InferenceSession`` takes them; by default CUDA where it works, else the CPU.
        sess_options: As ``onnxruntime.InferenceSession`` takes them.

    Raises:
        ModelFileError: If the file is missing or damaged.
        ProviderError: If a provider does not exist here, or did not take the session.

    Example:
        >>> import tempfile, pathlib, torch
        >>> from lit_gelu.export import export_onnx
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "gelu.onnx"
        >>> _ = export_onnx(torch.nn.GELU(), path, torch.zeros(2))
        >>> OnnxPredictor(path)(np.array([-1.0, 0.0, 1.0], dtype=np.float32)).round(4)
        array([-0.1587,  0.    ,  0.8413], dtype=float32)
        >>> OnnxPredictor(path)(torch.tensor([1.0]))
        tensor([0.8413])
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        providers: Sequence[Provider] | None = None,
        sess_options: onnxruntime.SessionOptions | None = None,
    ) -> None:
        self.session = open_session(path, providers, sess_options)
        self.path = Path(path)
        self._inputs = {value.name: value for value in self.session.get_inputs()}

    @property
    def providers(self) -> list[str]:
        """The execution providers that run the file, the first one first."""
        return list(self.session.get_providers())

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs, in order."""
        return list(self._inputs)

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs, in order."""
        return [value.name for value in self.session.get_outputs()]

    @property
    def metadata(self) -> dict[str, str]:
        """The file's metadata properties."""
        return dict(self.session.get_modelmeta().custom_metadata_map)

    def __call__(self, *inputs: Array, **named_inputs: Array) -> Any:
        """Run the file.

        Args:
            *inputs: Arrays or tensors in the order of ``input_names``, any batch size.
            **named_inputs: Inputs by name.

        Returns:
            The output, or a tuple of them if there are several: tensors on the device of the first input if any input
            is a tensor, else arrays.

        Raises:
            ModelInputError: If an input is missing, unknown, or has another dtype or shape than the file's.
            ModelFileError: If onnxruntime fails while it runs the file.
        """
        given = self._bind(inputs, named_inputs)
        feed = {name: self._checked(name, value) for name, value in given.items()}
        try:
            outputs = self.session.run(None, feed)
        except Exception as error:
            raise ModelFileError(f"onnxruntime failed while it ran {str(self.path)!r}: {error}") from error
        tensors = [value for value in given.values() if isinstance(value, Tensor)]
        if tensors:
            outputs = [torch.from_numpy(np.asarray(output)).to(tensors[0].device) for output in outputs]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _bind(self, inputs: tuple[Array, ...], named: Mapping[str, Array]) -> dict[str, Array]:
        """Give every input its name."""
        names = self.input_names
        if len(inputs) > len(names):
            raise ModelInputError(f"{len(inputs)} inputs were given, the file takes {len(names)}: {', '.join(names)}.")
        given = dict(zip(names, inputs, strict=False))
        wrong = [name for name in named if name not in names or name in given]
        missing = [name for name in names if name not in given and name not in named]
        if wrong or missing:
            problem = f"unknown or given twice: {', '.join(wrong)}" if wrong else f"missing: {', '.join(missing)}"
            raise ModelInputError(f"Inputs {problem}. The file takes: {', '.join(names)}.")
        return {name: given[name] if name in given else named[name] for name in names}

    def _checked(self, name: str, value: object) -> np.ndarray:
        """Return an input as an array if it has the file's dtype and shape."""
        expected = self._inputs[name]
        if not isinstance(value, (Tensor, np.ndarray)):
            raise ModelInputError(f"Input {name!r} is {type(value).__name__}. Give a numpy array or a torch tensor.")
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        dtype = _DTYPES.get(expected.type)
        if dtype is not None and array.dtype != dtype:
            raw = self.metadata.get("lit_gelu.preprocessing") and dtype == np.uint8
            remedy = "Its preprocessing is a part of it: give raw pixels" if raw else "Convert it first"
            raise ModelInputError(f"Input {name!r} is {array.dtype}, the file takes {np.dtype(dtype).name}. {remedy}.")
        fixed = [size if isinstance(size, int) else None for size in expected.shape]
        if len(fixed) != array.ndim or any(f is not None and f != n for f, n in zip(fixed, array.shape, strict=True)):
            shape = ", ".join(str(size) for size in expected.shape)
            raise ModelInputError(f"Input {name!r} has shape {array.shape}, the file takes ({shape}).")
        return np.ascontiguousarray(array)
