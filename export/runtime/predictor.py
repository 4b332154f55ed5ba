"""`OnnxPredictor`: runs an exported file on numpy arrays or torch tensors."""

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import onnxruntime

from lit_gelu.display import HtmlTable
from lit_gelu.export.errors import ModelFileError, ModelInputError, ProviderError
from lit_gelu.export.runtime.engine import Engine, Request, one_or_all, open_engine
from lit_gelu.export.runtime.model_file import read_model_file
from lit_gelu.export.runtime.placement import Placement, placement_of
from lit_gelu.export.runtime.ports import (
    Array,
    Port,
    bind_inputs,
    bind_names,
    is_tensor,
    require_fit,
    require_not_empty,
    require_one_size,
    require_values,
)
from lit_gelu.export.runtime.providers import Provider
from lit_gelu.export.runtime.settings import options_from, options_state
from lit_gelu.export.runtime.tuning_file import TuningChoice

if TYPE_CHECKING:
    import torch
    from torch import nn

    from lit_gelu.export.runtime.tuning import TuningReport

_log = logging.getLogger(__name__)
_of_parents: list[Engine] = []  # never freed: a session's destructor waits for threads that a forked process has not


class OnnxPredictor:
    """Runs an exported file on numpy arrays or torch tensors, in plain Python or in a LightningModule's `predict_step`.

    Arrays give arrays, tensors give tensors. Tensors that lie on the provider's device are read and written where they
    are, without copies, and on CUDA in the order of the caller's current stream, without waiting for the device (see
    `lit_gelu.export.runtime.streams`). Several threads may call it; with CUDA graphs their calls take turns. It can be
    pickled and survives a fork: a process that is new to it opens the file again.

    What `tune` chose on this machine is used if neither ``sess_options`` nor options of providers are given;
    ``predictor.tuning`` and ``repr(predictor)`` tell. A file of choices that is damaged is left alone, with a warning.

    A file that was exported with ``preprocessing=`` takes raw pixels, ``uint8``. TensorRT's engines are kept beside it.

    Args:
        path: The file.
        providers: As ``onnxruntime.InferenceSession`` takes them; by default CUDA where it works, else the CPU. Without
            the CPU in the list, a node that the first provider has no kernel for is an error.
        sess_options: As ``onnxruntime.InferenceSession`` takes them.
        provider_options: As ``onnxruntime.InferenceSession`` takes them.
        tuning: Whether to use what `tune` chose; or such a choice.
        batch_buckets: Batch sizes, for CUDA alone: each becomes one CUDA graph. A call is padded to the smallest that
            holds it, or divided into pieces of the largest; all sizes but the batch must be fixed. Of a file that says
            that its rows see each other, calls of these sizes alone are taken. The graphs are captured here: no other
            thread may use CUDA meanwhile.
        buckets: The same for every open size of the file, by its names: ``{"batch": (1, 8), "sequence": (64, 128)}`` is
            four CUDA graphs. Outputs are cut back to a call's own sizes; only the batch is divided. A size beside the
            batch is padded if an input named ``...attention_mask`` has it, with 0 for what is padding, or if
            ``padding`` names all inputs that have it.
        padding: What stands beyond the call's own sizes, by input; 0 in those that are not named.

    Raises:
        ModelFileError: If the file is missing or damaged, or its external data lie outside its folder.
        ModelInputError: If the file has open sizes without buckets, padding is given without any, or could change
            what the file computes.
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
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        tuning: bool | TuningChoice = True,
        batch_buckets: Sequence[int] = (),
        buckets: Mapping[str, Sequence[int]] | None = None,
        padding: Mapping[str, float] | None = None,
    ) -> None:
        self.path = Path(path)
        self._absolute = self.path.absolute()  # for another process, which may be in another folder
        self._request = Request(
            self.path,
            providers if providers is None or isinstance(providers, str) else list(providers),
            sess_options,
            None if provider_options is None else list(provider_options),
            tuning,
            tuple(batch_buckets),
            buckets or {},
            padding or {},
        )
        self._opening = threading.Lock()
        self._opened = self._open()

    def _open(self) -> Engine:
        """Open the file."""
        engine = open_engine(self._request)
        if engine.tuning is not None:
            _log.info("%s runs as tuned: %s", self.path, engine.tuning)
        return engine

    @property
    def _engine(self) -> Engine:
        """The opened file; opened anew in a process that was forked, where the threads of the old session are not."""
        if self._opened.process != os.getpid():
            with self._opening:
                if self._opened.process != os.getpid():
                    _of_parents.append(self._opened)
                    self._opened = self._open()
        return self._opened

    @property
    def session(self) -> onnxruntime.InferenceSession:
        """The session of onnxruntime."""
        return self._engine.session

    @property
    def device(self) -> "torch.device":
        """Where inputs are read and outputs written without copies."""
        return self._engine.torch_device

    @property
    def tuning(self) -> TuningChoice | None:
        """What `tune` chose, if that is used."""
        return self._engine.tuning

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
        return list(self._engine.inputs)

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs, in order."""
        return list(self._engine.outputs)

    @property
    def ports(self) -> dict[str, Port]:
        """Name, element type and shape of the inputs."""
        return dict(self._engine.inputs)

    @property
    def output_ports(self) -> dict[str, Port]:
        """Name, element type and shape of the outputs."""
        return dict(self._engine.outputs)

    @property
    def metadata(self) -> dict[str, str]:
        """The file's metadata properties."""
        return dict(self.session.get_modelmeta().custom_metadata_map)

    def __repr__(self) -> str:
        """Return the file, where it runs, and how it is tuned."""
        engine = self._engine
        how = f", tuned: {engine.tuning}" if engine.tuning else ""
        buckets = f", buckets={engine.buckets}" if engine.buckets else ""
        return f"OnnxPredictor({str(self.path)!r}, {', '.join(self.providers)}{buckets}{how})"

    def _repr_html_(self) -> str:
        """Return the table that Jupyter shows: inputs and outputs with their sizes."""
        both = (("input", self.ports), ("output", self.output_ports))
        rows = [(way, name, port.type_name, port.shape) for way, ports in both for name, port in ports.items()]
        return HtmlTable(("", "name", "type", "sizes"), rows, repr(self)).render()

    def __call__(self, *inputs: Array | Mapping[str, Array], **named_inputs: Array) -> Any:
        """Run the file.

        Args:
            *inputs: Arrays or tensors in the order of ``input_names``, any batch size; or one mapping of them by name,
                such as a tokenizer gives.
            **named_inputs: Inputs by name.

        Returns:
            The output, or a tuple of them if there are several: tensors on the device of the first tensor if any input
            is a tensor, else arrays. On CUDA they may still be in the making; the current stream knows.

        Raises:
            ModelInputError: If an input is missing, unknown, or has another dtype or shape than the file's, or if
                one name of the file would be two sizes.
            ModelFileError: If onnxruntime fails while it runs the file.
            ProviderError: If torch captures a CUDA graph, of which this cannot be a part.
        """
        if len(inputs) == 1 and not named_inputs and (quick := self._opened.quick(inputs[0])) is not None:
            return quick
        return self._run(inputs, named_inputs)

    def _run(self, inputs: tuple[Any, ...], named_inputs: Mapping[str, Array]) -> Any:
        """Run the file on what may not fit, in any number, wherever it lies."""
        engine = self._engine
        try:
            given = bind_inputs(engine.input_names, inputs, named_inputs)
            wanted = None
            for name, port in engine.inputs.items():
                value = given[name]
                if not port.fits(value):
                    require_fit(port, value, raw="lit_gelu.preprocessing" in self.metadata)
                if wanted is None and is_tensor(value):
                    wanted = value.device
            if engine.shared:
                require_one_size(given, engine.shared)
            if engine.never_empty:
                require_not_empty(given, engine.never_empty)
            if wanted is None:
                return one_or_all(engine.run_arrays(cast("Any", given)))
            outputs = engine.run_tensors(given)
            return one_or_all(outputs if wanted == engine.torch_device else [output.to(wanted) for output in outputs])
        except (ModelInputError, ProviderError):
            raise
        except Exception as error:
            require_values(bind_inputs(engine.input_names, inputs, named_inputs))
            raise ModelFileError(f"onnxruntime failed while it ran {str(self.path)!r}: {error}") from error

    def tune(
        self,
        *inputs: Array,
        reference: "nn.Module | Array | Sequence[Array] | None" = None,
        allow_tf32: bool = False,
        batch_size: int = 32,
        seconds: float = 30.0,
        save: bool = True,
        **named_inputs: Array,
    ) -> "TuningReport":
        """Measure options of the provider on this machine, keep the fastest beside the file, and run with it.

        Args:
            *inputs: What to measure with; by default rows are made up in the file's shapes.
            reference: See `lit_gelu.export.tune`.
            allow_tf32: See `lit_gelu.export.tune`.
            batch_size: Rows to make up.
            seconds: See `lit_gelu.export.tune`.
            save: Whether to write the choice beside the file.
            **named_inputs: Inputs by name.

        Returns:
            What was measured, and the choice.

        Raises:
            ModelInputError: If an input does not fit, or cannot be made up.
        """
        from lit_gelu.export.runtime.tuning import tune  # it opens predictors itself

        given = bind_names(self.input_names, inputs, named_inputs) if inputs or named_inputs else None
        providers = self._request.checked_providers(read_model_file(self.path))
        report = tune(
            self.path,
            given,
            providers=list(providers.items()),
            reference=reference,
            allow_tf32=allow_tf32,
            batch_size=batch_size,
            seconds=seconds,
            save=save,
        )
        with self._opening:
            self._request = replace(self._request, tuning=report.choice, sess_options=None)
            self._opened = self._open()
        return report

    def __getstate__(self) -> dict[str, Any]:
        """Return what opens the same file in another process."""
        state = {**vars(self._request), "path": self._absolute}
        return {**state, "sess_options": options_state(self._request.sess_options)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Open the file as it was opened before."""
        self.__init__(**{**state, "sess_options": options_from(state["sess_options"])})  # type: ignore[misc]
