"""What a run leaves behind: logged values, hyper-parameters, exported files. All of it is read, and nothing is run."""

import csv
import importlib.metadata
import os
import platform
from array import array
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from lit_gelu.errors import ArgumentError, DataError, LitGeluError
from lit_gelu.extras import need
from lit_gelu.report.content import ExportedFile, LoggedCurve, ReportedRun, SwapChange, SwapEvent, flat

METRICS, EVENTS = "metrics.csv", "events.out.tfevents.*"
_CONFIGURATIONS = {"hparams.yaml": "Hyper-parameters", "config.yaml": "Configuration of lit-gelu fit"}
_DISTRIBUTIONS = (
    "lit-gelu",
    "torch",
    "lightning",
    "torchmetrics",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "onnxruntime-gpu",
)


class CurveRecorder:
    """Curves that grow while a run goes on: 16 bytes a point."""

    def __init__(self) -> None:
        self._points: dict[str, tuple[array[int], array[float]]] = {}

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Take in what was logged at a step; the last value of a step stays."""
        for name, value in values.items():
            steps, figures = self._points.setdefault(name, (array("q"), array("d")))
            place = bisect_left(steps, step)
            if place < len(steps) and steps[place] == step:
                figures[place] = value
            else:
                steps.insert(place, step)
                figures.insert(place, value)

    def curves(self) -> tuple[LoggedCurve, ...]:
        """Return all curves, in the order in which they began."""
        return tuple(LoggedCurve(name, tuple(steps), tuple(values)) for name, (steps, values) in self._points.items())


def read_metrics_csv(path: Path) -> tuple[LoggedCurve, ...]:
    r"""Read the ``metrics.csv`` of Lightning's `CSVLogger`; cells that are no numbers are left out.

    Args:
        path: The file.

    Returns:
        A curve a column, ``step`` aside.

    Raises:
        DataError: If it cannot be read or has no column ``step``.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "metrics.csv"
        >>> _ = file.write_text("epoch,step,train_loss\n0,0,2.5\n0,1,nan\n")
        >>> read_metrics_csv(file)[1]
        LoggedCurve(name='train_loss', steps=(0, 1), values=(2.5, nan))
    """
    recorder = CurveRecorder()
    try:
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            rows = csv.DictReader(file)
            if "step" not in (rows.fieldnames or ()):
                raise DataError(f"{str(path)!r} has no column 'step': it is no metrics.csv of a CSVLogger.")
            for row in rows:
                step = _number(row.pop("step"), int)
                if step is not None and 0 <= step < 2**62:
                    values = {name: _number(text, float) for name, text in row.items() if isinstance(name, str)}
                    recorder.add(step, {name: value for name, value in values.items() if value is not None})
    except (OSError, csv.Error) as error:
        raise DataError(f"{str(path)!r} cannot be read as a table of values: {error}.") from error
    return recorder.curves()


def _number(text: Any, kind: Any) -> Any:
    try:
        return kind(text)
    except (TypeError, ValueError):
        return None


def read_event_files(folder: Path) -> tuple[tuple[LoggedCurve, ...], dict[str, str]]:
    """Return the scalars of TensorBoard's event files in a folder, and the last text of each tag of texts."""
    module = "tensorboard.backend.event_processing.event_accumulator"
    reader = need(module, extra="tensorboard", what=f"Reading TensorBoard's event files in {str(folder)!r}")
    limits = {"scalars": 0, "tensors": 1000, "images": 1, "audio": 1, "histograms": 1, "compressedHistograms": 1}
    recorder, texts = CurveRecorder(), dict[str, str]()
    try:
        events = reader.EventAccumulator(str(folder), size_guidance=limits)
        events.Reload()
        for tag in events.Tags()["scalars"]:
            for event in events.Scalars(tag):
                recorder.add(int(event.step), {tag: float(event.value)})
        for tag in events.Tags()["tensors"]:
            written = events.Tensors(tag)[-1].tensor_proto.string_val
            if written:
                texts[tag.removesuffix("/text_summary")] = bytes(written[0]).decode("utf-8", "replace")
    except Exception as error:  # damaged protocol buffers may raise anything in tensorboard
        raise DataError(f"TensorBoard's event files in {str(folder)!r} cannot be read: {str(error)[:200]}.") from error
    return recorder.curves(), texts


def read_log_folder(folder: str | os.PathLike[str]) -> tuple[ReportedRun, tuple[Path, ...]]:
    """Read what loggers wrote of a run, and which files lie beside that.

    Args:
        folder: Such as ``lightning_logs/version_0``.

    Returns:
        What it holds, and its checkpoints, the newest first.

    Raises:
        ArgumentError: If it is no folder that can be read, holds several runs, or nothing of a run.
    """
    top = Path(folder)
    files = _files_in(top)
    logs = sorted({path.parent for path in files if path.name == METRICS or path.match(EVENTS)})
    if len(logs) > 1 and top not in logs:
        names = ", ".join(repr(str(path)) for path in logs[:5])
        raise ArgumentError(f"{str(top)!r} holds the logs of {len(logs)} runs. Give one of them: {names}.")
    log = top if top in logs or not logs else logs[0]
    onnx_files = [path for path in files if path.suffix == ".onnx"]
    checkpoints = [path for path in files if path.suffix == ".ckpt"]
    if not (logs or onnx_files or checkpoints):
        raise ArgumentError(
            f"{str(top)!r} holds nothing of a run: no {METRICS}, no event files of TensorBoard, no checkpoint, no ONNX "
            "file. Give the folder of a logger, such as lightning_logs/version_0, or a checkpoint."
        )
    missing: list[str] = []
    curves, texts = _logged(log, missing)
    configuration = {}
    for name, title in _CONFIGURATIONS.items():
        settings = _plain_yaml(log / name, missing)
        texts |= {key: text for key, text in settings.items() if key.startswith("activation_swap/")}
        configuration[title] = {key: text for key, text in settings.items() if key not in texts}
    if not curves:
        missing.append("Curves: no logged values were found. Give the Trainer a logger, or callbacks=[RunReport()].")
    elif not any(name.startswith("curvature/") for name in curves):
        missing.append(
            "Curvature: it was not logged. ActivationCurvatureMonitor() and LossCurvatureMonitor() measure it."
        )
    run = ReportedRun(
        title=top.resolve().name,
        source=f"the folder {top.resolve().name}",
        made=now(),
        steps=max((curve.steps[-1] + 1 for curve in curves.values()), default=None),
        configuration={title: settings for title, settings in configuration.items() if settings},
        curves=tuple(curves.values()),
        swaps=swaps_in(texts),
        files=tuple(exported_file(path) for path in onnx_files[:20]),
        missing=tuple(missing),
    )
    return run, tuple(sorted(checkpoints, key=os.path.getmtime, reverse=True))


def _files_in(top: Path) -> list[Path]:
    """Return the files in a folder and three levels below, what is hidden aside."""
    if not top.is_dir() or not os.access(top, os.R_OK | os.X_OK):
        raise ArgumentError(
            f"{str(top)!r} is no folder that can be read. Give the folder of a logger, or a checkpoint."
        )
    paths = [path for depth in range(4) for path in sorted(top.glob("/".join(["[!.]*"] * (depth + 1))))]
    return [path for path in paths if path.is_file()]


def swaps_in(texts: Mapping[str, str]) -> tuple[SwapEvent, ...]:
    """Return the swaps that `ActivationSwap` logged: ``activation_swap/step_<step>/<site>`` = "old -> new".

    Example:
        >>> swaps_in({"activation_swap/step_40/net.1": "relu -> gelu"})[0].changes
        (SwapChange(site='net.1', old='relu', new='gelu'),)
    """
    swaps: dict[int, list[SwapChange]] = {}
    for name, text in texts.items():
        step, _, site = name.removeprefix("activation_swap/step_").partition("/")
        old, arrow, new = text.partition(" -> ")
        if arrow and step.isdecimal() and len(step) < 18:
            swaps.setdefault(int(step), []).append(SwapChange(site, old, new))
    return tuple(SwapEvent(step, None, tuple(changes)) for step, changes in sorted(swaps.items()))


def _logged(log: Path, missing: list[str]) -> tuple[dict[str, LoggedCurve], dict[str, str]]:
    """Return curves and texts of both loggers; what cannot be read is missing."""
    curves: dict[str, LoggedCurve] = {}
    texts: dict[str, str] = {}
    try:
        if any(log.glob(EVENTS)):
            events, texts = read_event_files(log)
            curves |= {curve.name: curve for curve in events}
        if (log / METRICS).is_file():
            curves |= {curve.name: curve for curve in read_metrics_csv(log / METRICS)}
    except LitGeluError as error:
        missing.append(str(error))
    return curves, texts


def _plain_yaml(file: Path, missing: list[str]) -> dict[str, str]:
    """Return the values of a YAML file that holds plain data alone, as text; what cannot be read is missing."""
    if not file.is_file():
        return {}
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError, TypeError, AttributeError) as error:
        missing.append(f"{file.name} is no YAML of plain data and was not read: {' '.join(str(error).split())[:200]}")
        return {}
    return flat(values) if isinstance(values, Mapping) and values else {}


def exported_file(path: str | os.PathLike[str]) -> ExportedFile:
    """Say what an ONNX file is and whether it was compared with PyTorch; nothing is run."""
    from lit_gelu.export.inspection import inspect_onnx

    file = Path(path)
    try:
        inspection = inspect_onnx(file)
    except LitGeluError as error:
        size = file.stat().st_size if file.is_file() else 0
        return ExportedFile(file.name, size, "unreadable", trouble=str(error))
    opset, metadata = inspection.opsets.get("", 0), inspection.metadata
    exported = ExportedFile(file.name, inspection.size, opset=opset, activations=inspection.activations)
    if metadata is None:
        return exported
    passed, largest = metadata.parity.get("passed"), metadata.parity.get("max_relative_error")
    return replace(
        exported,
        proof="passed" if passed is True else "failed" if passed is False else "none",
        written_as=", ".join(str(part) for part in (metadata.dtype, metadata.approximate, metadata.target) if part),
        largest_error=largest if isinstance(largest, float) else None,
        provider=str(metadata.parity.get("provider", ""))[:200],
    )


def environment() -> dict[str, str]:
    """Return what of this machine and installation a reader of results needs.

    Example:
        >>> sorted({"Python", "Processor", "torch"} & environment().keys())
        ['Processor', 'Python', 'torch']
    """
    import torch

    from lit_gelu.export.runtime.tuning_file import cores, processor

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    facts = {
        "Python": platform.python_version(),
        "System": f"{platform.system()} {platform.machine()}",
        "Processor": f"{processor()}, {cores()} cores",
        "GPU": f"{', '.join(gpus)} (CUDA {torch.version.cuda})" if gpus else "none that torch can use",
    }
    installed = {each.metadata["Name"]: each.version for each in importlib.metadata.distributions()}
    facts |= {name: installed[name] for name in _DISTRIBUTIONS if name in installed}
    return facts


def now() -> str:
    """Return the time as ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
