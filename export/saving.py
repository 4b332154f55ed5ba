"""Writing a model: checked before it takes the place of what was there."""

import os
import re
import secrets
from collections import Counter
from pathlib import Path

import onnx
import onnx_ir as ir

from lit_gelu.export.errors import ExportError
from lit_gelu.files import is_file, synchronise, write_atomically
from lit_gelu.leftovers import forget, make_temporary_folder

EXTERNAL_DATA_ABOVE = 2 * 1024**3 - 64 * 1024**2  # bytes: protobuf's limit is 2 GiB; the rest is for the graph itself


def save_model(model: ir.Model, path: str | os.PathLike[str]) -> None:
    """Check a model and write it in one rename; if anything fails, what was at ``path`` stays.

    Above 2 GB the weights go to a file beside it. That file has a new name each time, so that the old model and its
    weights stay together until the new model takes the old one's place.

    Args:
        model: The model.
        path: The file.

    Raises:
        ExportError: If ``onnx.checker`` or shape inference refuses the model.
    """
    target = Path(path)
    size = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value)
    data = target.with_name(f"{target.name}.{secrets.token_hex(4)}.data") if size > EXTERNAL_DATA_ABOVE else None
    old = _data_files(target) if data is not None or is_file(target) else []
    try:
        with write_atomically(target) as temporary:
            if data is None:
                ir.save(model, temporary)
                _check(temporary, str(path))
            else:
                _save_with_data(model, target, temporary, data)
    except BaseException:
        if data is not None:
            data.unlink(missing_ok=True)
        raise
    for file in old:
        file.unlink(missing_ok=True)


def _save_with_data(model: ir.Model, target: Path, temporary: Path, data: Path) -> None:
    """Write a model's file and the weights beside it: in a folder that goes with the next write if this is killed."""
    folder = make_temporary_folder(target)
    try:
        made = folder / target.name
        ir.save(model, made, external_data=data.name)
        _check(made, str(target))
        synchronise(folder / data.name)
        (folder / data.name).rename(data)
        made.replace(temporary)
    finally:
        forget(folder)


def _data_files(path: Path) -> list[Path]:
    """Return the external data files of a model that is there already, as far as this module wrote them."""
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception:  # noqa: BLE001 - whatever is there, if it is no ONNX model it has no data files of ours
        return []
    ours = re.compile(re.escape(path.name) + r"\.[0-9a-f]{8}\.data")
    entries = [entry for tensor in model.graph.initializer for entry in tensor.external_data if entry.key == "location"]
    return [path.parent / name for name in {entry.value for entry in entries} if ours.fullmatch(name)]


def _check(path: Path, name: str) -> None:
    """Run onnx's full checker, which includes strict shape inference, on a file."""
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportError(f"onnx's checker refuses the model for {name!r}; nothing was written: {error}") from error


def census(model: onnx.ModelProto) -> Counter[str]:
    """Count the operators of a model, those of subgraphs not included.

    Args:
        model: The model.

    Returns:
        Count by operator, ``domain::Name`` for those that are not standard.
    """
    return Counter(f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in model.graph.node)
