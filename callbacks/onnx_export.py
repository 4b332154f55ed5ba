"""`OnnxExport`: at the end of a fit, the best checkpoint as an ONNX file, and the proof beside it."""

import itertools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn
from typing_extensions import override

from lit_gelu.activations import ActivationRegistry
from lit_gelu.callbacks.loading import module_of_checkpoint
from lit_gelu.callbacks.swap.run import registry_for
from lit_gelu.callbacks.trainer import callbacks_of, is_trial_run, log_figures, refuse_mixed_packages, shards_parameters
from lit_gelu.errors import ArgumentError, ExportError, ParityError, UnsupportedRunError
from lit_gelu.sandbox import isolated_random_state

if TYPE_CHECKING:
    # jsonargparse looks up the last one here, for the options that `OnnxExport` hands on.
    from lit_gelu.export import ExportReport, ParityReport, export_onnx  # noqa: F401

OnBreach = Literal["raise", "warn"]
FILE_NAME = "model.onnx"


class OnnxExport(Callback):
    """Writes the best checkpoint of a fit as an ONNX file when the fit is over, and proves it.

    The file is the ``best_model_path`` of the first checkpoint callback that has one, with the activations that the
    module had at that time; without one, the module as it ends. Not after ``fast_dev_run``, nor if the fit raised. It
    is compared by `lit_gelu.export.check_parity` on the data module's test data, or validation data, and the reports
    are beside it (``model.parity.json``, ``.md``, ``.html``). Module, generators and Trainer stay as they were.

    Of several ranks rank 0 works, the others wait for it, and all of them fail if it does. The module's own test
    metrics are then not compared, since metrics would wait for the other ranks.

    Args:
        path: The file; by default ``model.onnx`` beside the best checkpoint, or in the logger's folder.
        preprocessing: As `lit_gelu.export.export_onnx`; ``True`` is the data module's ``preprocessing()``.
        input_sample: As `lit_gelu.export.export_onnx`; by default the module's ``example_input_array``.
        check: Whether to prove the file.
        on_breach: What to do if the file does not compute what the module computes, or cannot be written: "raise", or
            "warn", which lets the fit end well. A file that breaches stays, with its reports.
        registry: Which registry names the activations; ``None`` is the module's own or the default one.
        export_options: All other options of `lit_gelu.export.export_onnx`.

    Attributes:
        exported: What was written; ``None`` before the end of a fit, and on other ranks than 0.
        parity: What the proof found.

    Raises:
        ArgumentError: If ``path``, ``on_breach`` or an option of the export is not accepted.
        ModelInputError: At the start of a fit, if there is no sample to export with.
        UnsupportedRunError: At the start of a fit, if the strategy shards parameters.
        ParityError: At the end of a fit, if the file does not compute what the module computes.
        ExportError: At the end of a fit, if the module cannot be exported; on other ranks, if rank 0 failed.

    Example:
        >>> OnnxExport("net.onnx", approximate="tanh").options["approximate"]
        'tanh'
    """

    def __init__(
        self,
        path: str | None = None,
        *,
        preprocessing: nn.Module | bool = False,
        input_sample: Any = None,
        check: bool = True,
        on_breach: OnBreach = "raise",
        registry: ActivationRegistry | None = None,
        **export_options: Any,
    ) -> None:
        from lit_gelu.export.metadata import ExportOptions

        ExportOptions.checked(**export_options)
        if path is not None and Path(path).suffix != ".onnx":
            raise ArgumentError(f"OnnxExport(path={str(path)!r}) must end in .onnx.")
        if not isinstance(preprocessing, nn.Module | bool | None):
            raise ArgumentError(f"OnnxExport(preprocessing={preprocessing!r}): give a module, True or False.")
        if on_breach not in get_args(OnBreach):
            raise ArgumentError(f"OnnxExport(on_breach={on_breach!r}): accepted are 'raise' and 'warn'.")
        self.path = path
        self.preprocessing = preprocessing
        self.input_sample = input_sample
        self.check = check
        self.on_breach = on_breach
        self.registry = registry
        self.options = export_options
        self.exported: ExportReport | None = None
        self.parity: ParityReport | None = None

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse before training what would fail after it."""
        from lit_gelu.export.inputs import sample_of

        refuse_mixed_packages(trainer, pl_module)
        if stage != "fit":
            return
        self.exported = self.parity = None
        if shards_parameters(trainer):
            raise UnsupportedRunError(
                f"OnnxExport does not work with {type(trainer.strategy).__name__}, whose modules are in parts. Export "
                "afterwards: lit-gelu export, with a consolidated checkpoint."
            )
        sample_of(pl_module, self.input_sample)
        if self.preprocessing is True and not hasattr(getattr(trainer, "datamodule", None), "preprocessing"):
            raise UnsupportedRunError(
                "OnnxExport(preprocessing=True) needs a data module with preprocessing(). Give trainer.fit one, or the "
                "module itself as preprocessing=."
            )

    @override
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Export and prove on rank 0; the other ranks wait."""
        if is_trial_run(trainer):
            return
        folder = trainer.log_dir or trainer.default_root_dir  # asks all ranks, so not on rank 0 alone
        error: Exception | None = None
        if trainer.is_global_zero:
            try:
                with isolated_random_state(pl_module):
                    self._export(trainer, pl_module, folder)
            except Exception as caught:  # noqa: BLE001 - whatever it is, the other ranks must not wait for ever
                error = caught
        message = trainer.strategy.broadcast(None if error is None else f"{type(error).__name__}: {error}")
        if message is None:
            return
        if self.on_breach == "warn":
            rank_zero_warn(f"OnnxExport: {message}")
        elif error is not None:
            raise error
        else:
            raise ExportError(f"OnnxExport failed on rank 0: {message}")

    def _export(self, trainer: Trainer, pl_module: LightningModule, folder: str) -> None:
        """Write, prove and log."""
        from lit_gelu.export import check_parity, export_onnx, write_proof

        paths = (getattr(callback, "best_model_path", "") for callback in callbacks_of(trainer))
        best = str(next(filter(None, paths), ""))
        module: nn.Module = pl_module
        if best:
            sample = self.input_sample if self.preprocessing in (None, False) else None  # else it is raw pixels
            module = module_of_checkpoint(pl_module, best, self.registry, sample)
        registry = registry_for(pl_module, [self.registry])
        remote = not best or "://" in best
        path = Path(self.path) if self.path else (Path(folder) if remote else Path(best).parent) / FILE_NAME
        pixels: Any = self.preprocessing or None
        if pixels is True:
            pixels = trainer.datamodule.preprocessing()  # type: ignore[attr-defined]  # `setup` asked for it
        sample = self.input_sample
        self.exported = self.parity = None  # until each is known of the file that is written now
        self.exported = export_onnx(module, path, sample, registry=registry, preprocessing=pixels, **self.options)
        if not self.check:
            rank_zero_info(f"OnnxExport: wrote {path} (opset {self.exported.opset}); not compared with PyTorch.")
            return
        data = _data(trainer, raw=pixels is not None)
        self.parity = check_parity(module, path, data, sample, strict=False, registry=registry, preprocessing=pixels)
        write_proof(self.parity, path)
        log_figures(trainer, figures_of(self.parity))
        if not self.parity.passed:
            raise ParityError(
                f"The exported file does not compute what the module computes. {self.parity.summary()}.", self.parity
            )
        rank_zero_info(f"OnnxExport: wrote {path} (opset {self.exported.opset}); {self.parity.summary()}.")


def figures_of(report: "ParityReport") -> dict[tuple[str, ...], float]:
    """Return what is logged of a parity report."""
    from lit_gelu.export.parity.report import VS_FLOAT64

    error = report.largest_error
    figures: dict[tuple[str, ...], float] = {("export", "parity_passed"): float(report.passed)}
    figures["export", "max_relative_error"] = float("inf") if error is None else error
    shares = [
        row.top1_agreement
        for row in report.rows
        if (row.inputs, row.comparison) == ("data", VS_FLOAT64) and row.top1_agreement is not None
    ]
    if shares:
        figures["export", "top1_agreement"] = min(shares)
    for metric in report.metrics:
        figures["export", "test_metric", metric.name, "pytorch"] = metric.pytorch
        figures["export", "test_metric", metric.name, "file"] = metric.file
    return figures


def _data(trainer: Trainer, *, raw: bool) -> Any:
    """Return what the file is compared on."""
    from lit_gelu.export.parity.input_families import list_or_loader, loaders_in

    module = getattr(trainer, "datamodule", None)
    if module is not None and any(is_overridden(f"{kind}_dataloader", module) for kind in ("val", "test")):
        # A test loop on one rank alone: torchmetrics would gather over all ranks, and wait for them.
        return module if raw or trainer.world_size == 1 else list_or_loader(module)
    if raw or trainer.val_dataloaders is None:
        return None
    loaders = zip(loaders_in(trainer.val_dataloaders), trainer.num_val_batches, strict=False)
    # A loader without a length may have no end but limit_val_batches.
    limited = [itertools.islice(loader, int(limit) if math.isfinite(limit) else None) for loader, limit in loaders]
    return itertools.chain.from_iterable(limited) if limited else None
