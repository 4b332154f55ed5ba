"""Calibration: the rows of data that a file's ranges are found on, and the ranges."""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, create_calibrator
from onnxruntime.quantization.calibrate import CalibraterBase, CalibrationDataCollector, TensorsData
from torch import Tensor

from lit_gelu.export.errors import ModelInputError
from lit_gelu.export.parity.execution import as_array
from lit_gelu.export.parity.input_families import list_or_loader
from lit_gelu.export.preprocessing import is_data_module
from lit_gelu.export.quantization.collectors import ExtremeNumbers, NumberCounts, fixed_histograms
from lit_gelu.export.quantization.layers import PASSING, WEIGHTED
from lit_gelu.export.quantization.settings import METHODS, QuantizationSettings
from lit_gelu.export.runtime import OnnxPredictor
from lit_gelu.export.runtime.ports import bind_names, require_fit
from lit_gelu.export.runtime.session import captured_stdout

Feed = Mapping[str, np.ndarray]
_RAW_ROWS = 64  # at once, of raw training inputs


def calibration_feeds(data: Any, predictor: OnnxPredictor, samples: int, seed: int) -> list[Feed]:
    """Return the rows to calibrate on: a data module's training rows shuffled by ``seed``, else the first ones."""
    raw = bool(predictor.metadata.get("lit_gelu.preprocessing"))
    feeds: list[Feed] = []
    left = samples
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for batch in _batches(data, samples, raw=raw):
            feed = _feed(batch, predictor, raw=raw)
            rows = min(left, len(next(iter(feed.values()))))
            feeds += [_first_rows(feed, predictor, rows)] if rows else []
            left -= rows
            if left <= 0:
                break
    if not feeds:
        raise ModelInputError("The data hold no row to calibrate on. Give data with at least one batch.")
    return feeds


def _first_rows(feed: Feed, predictor: OnnxPredictor, rows: int) -> Feed:
    """Return the first rows of the inputs, along every axis that is the batch; others, such as a table, stay whole."""
    batch = next(iter(predictor.ports.values())).shape[:1]
    cut = dict(feed)
    for name in feed:
        for axis, size in enumerate(predictor.ports[name].shape):
            if (size,) == tuple(batch) and (axis == 0 or isinstance(size, str)):  # a state has it on its second axis
                cut[name] = cut[name][(slice(None),) * axis + (slice(rows),)]
    return cut


def _batches(data: Any, samples: int, *, raw: bool) -> Iterable[Any]:
    """Return an iterable of batches; of a data module, its training data."""
    if not is_data_module(data):
        return list_or_loader(data)
    data.prepare_data()
    data.setup("fit")
    if not raw:
        loader: Iterable[Any] = data.train_dataloader()
        return loader
    if not callable(getattr(data, "raw_train_inputs", None)):
        raise ModelInputError(
            f"The file takes raw pixels, and {type(data).__name__} has no raw_train_inputs() to calibrate on. Give raw "
            "training pixels as data, or quantise a file without preprocessing."
        )
    pixels: Any = data.raw_train_inputs()
    drawn: Iterable[Any] = pixels[torch.randperm(len(pixels))[:samples]].split(_RAW_ROWS)
    return drawn


def _feed(batch: Any, predictor: OnnxPredictor, *, raw: bool) -> Feed:
    """Return the inputs of one batch as arrays by name."""
    names = predictor.input_names
    if isinstance(batch, Mapping):
        bound = bind_names(names, (), {name: batch[name] for name in names if name in batch})
    else:
        parts = [batch] if isinstance(batch, (Tensor, np.ndarray)) else list(batch)[: len(names)]
        bound = bind_names(names, parts, {})
    feed = {}
    for name, value in bound.items():
        require_fit(predictor.ports[name], value, raw=raw)
        feed[name] = as_array(value) if isinstance(value, Tensor) else value
        if feed[name].dtype.kind == "f" and not np.isfinite(feed[name]).all():
            raise ModelInputError(
                f"The data have NaN or infinite values in {name!r}: no range holds them. Leave those rows out."
            )
    return feed


class FeedReader(CalibrationDataReader):  # type: ignore[misc]
    """Hands batches to onnxruntime's calibration."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self._left: Iterator[Feed] = iter(feeds)

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the next batch; ``None`` after the last one."""
        feed = next(self._left, None)
        return None if feed is None else dict(feed)


def find_ranges(model: onnx.ModelProto, feeds: Sequence[Feed], settings: QuantizationSettings) -> TensorsData:
    """Find the ranges of all values that could be quantised."""
    with tempfile.TemporaryDirectory() as folder, captured_stdout():  # it prints what it does
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        if settings.method == "percentile":
            counts = NumberCounts()
            _collected(path, feeds, settings, counts)
            extremes = ExtremeNumbers(counts.compute_collection_result(), symmetric=settings.symmetric)
            _collected(path, feeds, settings, extremes)
            return TensorsData(CalibrationMethod.MinMax, extremes.compute_collection_result())
        whole = _collected(path, feeds, replace(settings, method="minmax")).compute_data()
        if settings.method == "minmax":
            return whole
        ranges = {name: (np.min(ends.range_value[0]), np.max(ends.range_value[1])) for name, ends in whole.items()}
        return _collected(path, feeds, settings, fixed_histograms(ranges, symmetric=settings.symmetric)).compute_data()


def _collected(
    path: Path, feeds: Sequence[Feed], settings: QuantizationSettings, collector: CalibrationDataCollector | None = None
) -> CalibraterBase:
    """Return onnxruntime's calibrator for a method after it has seen the batches, with a collector of our own."""
    calibrator = create_calibrator(
        path,
        [*WEIGHTED, *PASSING],
        augmented_model_path=str(path.with_name("augmented.onnx")),
        calibrate_method=METHODS[settings.method],
        extra_options={"symmetric": settings.symmetric},
    )
    calibrator.collector = collector
    # Batches are given one by one, so that memory holds the intermediate values of one of them.
    for feed in feeds:
        calibrator.collect_data(FeedReader([feed]))
    return calibrator
