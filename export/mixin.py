"""`OnnxExportMixin`: a LightningModule whose ``to_onnx`` writes what `export_onnx` writes."""

import inspect
import io
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lit_gelu.export.errors import ExportOptionError
from lit_gelu.export.exporter import export_onnx

if TYPE_CHECKING:
    from torch import nn

# Arguments of torch.onnx.export whose value changes nothing here: this is done anyway, or done with.
_DONE_ANYWAY: Mapping[str, tuple[Any, ...]] = {
    "dynamo": (True,),
    "export_params": (True,),
    "do_constant_folding": (True,),
    "keep_initializers_as_inputs": (False, None),
    "optimize": (True,),
    "external_data": (True, False),
    "fallback": (False,),
    "verbose": (True, False, None),
    "verify": (False,),
    "report": (False,),
    "profile": (False,),
    "dump_exported_program": (False,),
}
_INSTEAD = {
    "input_names": "inputs are called as forward's arguments are",
    "output_names": "outputs are called 'output', 'output_0' ..., or as the keys of the dict that forward returns",
    "dynamic_axes": "give dynamic_shapes={input: {axis: name}}, for inputs only; the batch is dynamic anyway",
    "dynamo": "only dynamo=True exists here",
}


class OnnxExportMixin:
    """A LightningModule whose ``to_onnx`` has Lightning's signature and writes what `export_onnx` writes.

    Lightning's own method (2.6) exports the module in the mode that it is in: with ``Dropout`` that draws and
    ``BatchNorm`` that learns if it is training; it fixes the batch at the sample's size, and writes a second file for
    the weights however small. Here the file is the evaluation-mode copy, has a dynamic batch and metadata, and is one
    up to 2 GB::

        class Net(OnnxExportMixin, LightningModule): ...

        Net().to_onnx("net.onnx", approximate="tanh")

    The sample is what ``forward`` takes; the batch-transfer hooks (``on_after_batch_transfer`` ...) that Lightning
    runs on it are not run.

    Raises:
        ExportOptionError: When a class is made in which another ``to_onnx`` comes first: name the mixin before
            ``LightningModule``.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse an order of base classes in which the mixin does nothing."""
        super().__init_subclass__(**kwargs)
        owner = next(base for base in cls.__mro__ if "to_onnx" in vars(base))
        if not issubclass(owner, OnnxExportMixin):
            raise ExportOptionError(
                f"{cls.__name__} takes to_onnx from {owner.__name__}, not from OnnxExportMixin. Name the mixin first: "
                f"class {cls.__name__}(OnnxExportMixin, LightningModule)."
            )

    def to_onnx(
        self,
        file_path: str | os.PathLike[str] | io.BytesIO | None = None,
        input_sample: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Write the module as an ONNX file.

        Args:
            file_path: The file, or a buffer that it is written to.
            input_sample: What to trace with; by default ``example_input_array``.
            **kwargs: Options of `export_onnx`. Of those of ``torch.onnx.export``, ``opset_version`` is ``opset``;
                those that ask for what is done anyway (``export_params=True``, ``dynamo=True``,
                ``do_constant_folding=True``, ``verbose``) may stay.

        Returns:
            The `ExportReport`; its ``path`` is only the name ``model.onnx`` for a buffer.

        Raises:
            ExportOptionError: If there is no ``file_path``, an option does not exist, or one of ``torch.onnx.export``
                asks for what is not done here.
            LitGeluError: As `export_onnx`.

        Example:
            >>> import torch
            >>> class Net(OnnxExportMixin, torch.nn.Module):
            ...     def __init__(self):
            ...         super().__init__()
            ...         self.act = torch.nn.GELU()
            ...     def forward(self, x):
            ...         return self.act(x)
            >>> buffer = io.BytesIO()
            >>> dict(Net().to_onnx(buffer, torch.zeros(1, 2)).census)
            {'Gelu': 1}
        """
        options = _options(kwargs)
        module = cast("nn.Module", self)
        if isinstance(file_path, io.BytesIO):
            with tempfile.TemporaryDirectory() as folder:
                report = export_onnx(module, Path(folder) / "model.onnx", input_sample, **options)
                if len(list(Path(folder).iterdir())) > 1:
                    raise ExportOptionError(
                        "The weights need more than 2 GB, which takes a second file. Give file_path= as a path."
                    )
                file_path.write(report.path.read_bytes())
            return replace(report, path=Path(report.path.name))
        if file_path is None:
            raise ExportOptionError("to_onnx needs file_path=: a path, or an io.BytesIO.")
        return export_onnx(module, file_path, input_sample, **options)


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Turn arguments of ``torch.onnx.export`` into those of `export_onnx`, which stay as they are."""
    options = dict(given)
    if "opset_version" in options:
        version = options.pop("opset_version")
        if options.setdefault("opset", version) != version:
            raise ExportOptionError(
                f"opset_version={version} and opset={options['opset']} are two names of one option."
            )
    for name in list(options):
        if name in _DONE_ANYWAY and any(options[name] is value for value in _DONE_ANYWAY[name]):
            del options[name]
        elif name in _DONE_ANYWAY or name in _INSTEAD:
            why = f": {_INSTEAD[name]}" if name in _INSTEAD else ""
            raise ExportOptionError(
                f"to_onnx({name}={options[name]!r}) is not done here{why}. Leave it out, or call "
                "LightningModule.to_onnx(model, ...)."
            )
    unknown = sorted(options.keys() - set(_accepted()))
    if unknown:
        raise ExportOptionError(f"to_onnx has no option {unknown[0]!r}. Accepted: {', '.join(_accepted())}.")
    return options


def _accepted() -> list[str]:
    """Return the options of `export_onnx`."""
    return [
        name
        for name, parameter in inspect.signature(export_onnx).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    ]
