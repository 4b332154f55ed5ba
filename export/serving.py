"""An exported file as a model of Triton Inference Server: its folder, and a ``config.pbtxt`` made of what it says."""

import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf import text_encoding  # type: ignore[import-untyped]

from lit_gelu.display import Displayed
from lit_gelu.errors import ArgumentError, ModelFileError
from lit_gelu.export.metadata import FileMetadata, recorded_metadata
from lit_gelu.export.runtime import OnnxPredictor
from lit_gelu.export.runtime.model_file import ModelFile, read_model_file
from lit_gelu.export.runtime.session import CPU
from lit_gelu.files import UnwritablePathError

_MODEL, _CONFIG, _LABELS = "model.onnx", "config.pbtxt", "labels.txt"
_LARGEST_BATCH = 128  # where none is given: the largest that `lit-gelu bench` times by default
_ANY_SIZE = -1
# ONNX's element types that Triton's onnxruntime backend takes (``ConvertFromOnnxDataType`` in onnxruntime_utils.cc), by
# Triton's names; bfloat16, which Triton itself has, is not among them.
_TYPES = {t: t for t in ("BOOL", "STRING", *(f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)))}
_TYPES |= {"FLOAT16": "FP16", "FLOAT": "FP32", "DOUBLE": "FP64"}


# onnxruntime's default rounds the factors of float32 products to about three decimal digits fewer, which neither
# `OnnxPredictor` nor a file's proof does. 16 bit needs it for the tensor cores.
_ON_A_GPU = """\
optimization {{
  execution_accelerators {{
    gpu_execution_accelerator {{
      name: "cuda"
      parameters {{
        key: "use_tf32"
        value: "{tf32:d}"
      }}
    }}
  }}
}}
"""


@dataclass(frozen=True, repr=False)
class TritonModel(Displayed):
    """What `write_triton_repository` wrote."""

    model: Path  # in the repository
    config: str  # the text of the model's ``config.pbtxt``
    notes: tuple[str, ...] = ()  # what its user should know

    def __str__(self) -> str:
        """Return the files, and one line a note."""
        return "\n".join([f"{self.model}, {self.model.parents[1] / _CONFIG}", *(f"  {note}" for note in self.notes)])


def write_triton_repository(
    path: str | os.PathLike[str],
    repository: str | os.PathLike[str],
    *,
    device: str,
    name: str | None = None,
    version: int = 1,
    max_batch_size: int | None = None,
    overwrite: bool = False,
) -> TritonModel:
    """Write an ONNX file into a model repository of Triton Inference Server, for its onnxruntime backend.

    ``<repository>/<name>/config.pbtxt``, ``labels.txt`` if the file carries labels, and
    ``<repository>/<name>/<version>/model.onnx`` with its external data. A new model or version appears in one rename. A
    configuration that is there stays as it is. On a GPU float32 files run without TF32, as in their proof.

    Args:
        path: The file; any ONNX file, not only one of `lit_gelu.export.export_onnx`.
        repository: The repository's folder; it is made if it is not there.
        device: ``"cpu"`` or ``"gpu"``: where the server runs it.
        name: The model's name; by default the file's, without ``.onnx``.
        version: Its number, from 1 on.
        max_batch_size: Rows of the largest batch that Triton may put together; 0 passes requests on as they are. By
            default 128 if every input and output begins with the same dynamic size, no other size contains that one,
            and rows do not see each other; else 0.
        overwrite: Replace a version and a configuration that are there.

    Returns:
        What was written.

    Raises:
        ArgumentError: If an option does not exist or does not fit the file, or the version is there already.
        ModelFileError: If the file is missing or damaged, onnxruntime cannot open it, or a type is none of Triton's.
        UnwritablePathError: If the repository cannot be written to.

    Example:
        >>> import torch
        >>> from lit_gelu.export import export_onnx
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = export_onnx(torch.nn.GELU(), folder / "gelu.onnx", torch.zeros(2, 3))
        >>> written = write_triton_repository(folder / "gelu.onnx", folder / "repository", device="cpu")
        >>> sorted(p.relative_to(folder).as_posix() for p in (folder / "repository").rglob("*") if p.is_file())
        ['repository/gelu/1/model.onnx', 'repository/gelu/config.pbtxt']
        >>> written.config.splitlines()[:3]
        ['name: "gelu"', 'backend: "onnxruntime"', 'max_batch_size: 128']
    """
    model = read_model_file(path)
    name = Path(path).stem if name is None else name
    if device not in {"cpu", "gpu"}:
        raise ArgumentError(f"device={device!r} is not accepted. Give 'cpu' or 'gpu'.")
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise ArgumentError(f"name={name!r} is no name of a model. Give name= letters, digits, '_', '-', '.'.")
    if version < 1:
        raise ArgumentError(f"version={version} is not accepted. Give a number from 1 on.")
    if _MODEL in map(os.path.normpath, model.external):
        raise ArgumentError(f"{str(path)!r} keeps its weights in {_MODEL!r}, the model's own name here: save it anew.")
    if device == "cpu":
        OnnxPredictor(path, [CPU])  # refuses what the server could not open

    config, labels, notes = _configuration(model, name, device, max_batch_size)
    files = {_CONFIG: config, **({_LABELS: labels} if labels else {})}
    folder = Path(repository) / name
    _write(model, folder, version, files, overwrite=overwrite)
    texts = {name: (folder / name).read_text(encoding="utf-8", errors="replace") for name in files}
    kept = [name for name in files if texts[name] != files[name]]
    notes += [f"{name} was there already, and stays; this file asks for another: overwrite=True." for name in kept]
    return TritonModel(folder / str(version) / _MODEL, texts[_CONFIG], tuple(notes))


def _configuration(model: ModelFile, name: str, device: str, max_batch_size: int | None) -> tuple[str, str, list[str]]:
    """Return the text of the configuration, that of the labels, and notes."""
    proto = onnx.load(model.path, load_external_data=False)
    about = recorded_metadata(model.path)
    weights = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in weights]
    reason = _why_no_batches([*inputs, *proto.graph.output], about)
    largest = (0 if reason else _LARGEST_BATCH) if max_batch_size is None else max_batch_size
    if largest < 0 or (largest and reason):
        raise ArgumentError(f"max_batch_size={max_batch_size} is not accepted: {reason or 'below 0'}. Leave it out.")

    labels = () if about is None else about.labels
    text = f'name: "{name}"\nbackend: "onnxruntime"\nmax_batch_size: {largest}\n'
    for value in inputs:
        text += f"input {{\n{_port(value, largest)}}}\n"
    for number, value in enumerate(proto.graph.output):
        labelled = f'  label_filename: "{_LABELS}"\n' if labels and number == 0 else ""
        text += f"output {{\n{_port(value, largest)}{labelled}}}\n"
    text += f"instance_group {{\n  kind: KIND_{device.upper()}\n  count: 1\n}}\n"
    text += "dynamic_batching {\n}\n" if largest > 1 else ""
    text += _ON_A_GPU.format(tf32=model.sixteen_bit) if device == "gpu" else ""
    failed = about is not None and about.parity.get("passed") is False
    notes = {
        f"Triton passes requests on one by one: {reason}.": reason,
        f"{model.path.name} failed its comparison with PyTorch: see the report beside it.": failed,
    }
    lines = "".join(f"{' '.join(label.splitlines())}\n" for label in labels)
    return text, lines, [note for note, holds in notes.items() if holds]


def _why_no_batches(values: Sequence[onnx.ValueInfoProto], about: FileMetadata | None) -> str:
    """Return why Triton must not join requests; empty if every value begins with one batch whose rows are apart."""
    sizes = {value.name: _sizes(value) for value in values}
    batch = next((each[0] for each in sizes.values() if each), 0)
    if not isinstance(batch, str) or not batch or any(each[:1] != [batch] for each in sizes.values()):
        first = ", ".join(f"{name}: {each[0] if each else 'no sizes'}" for name, each in sizes.items())
        return f"not all tensors begin with one dynamic size, the batch ({first})"
    for name, each in sizes.items():  # as the similarities of all with all: a request would get those of others too
        for axis, size in enumerate(each[1:], 1):
            if isinstance(size, str) and (size == batch or batch in re.findall(r"[^\W\d]\w*", size)):
                return f"rows of a batch see each other, for {batch!r} is in axis {axis} of {name!r} too"
    return f"rows of {batch!r} see each other, as the export found" if about is not None and about.rows_depend else ""


def _sizes(value: onnx.ValueInfoProto) -> list[int | str]:
    """Return the sizes of an input or output; of open ones the name, empty where they have none."""
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
        raise ModelFileError(f"{value.name!r} is no tensor whose sizes are written down. Try onnx.shape_inference.")
    sizes = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in kind.shape.dim]
    if any(isinstance(size, int) and size < _ANY_SIZE for size in sizes):
        raise ModelFileError(f"{value.name!r} has the sizes {sizes}, which a file cannot have: export it again.")
    return sizes


def _port(value: onnx.ValueInfoProto, largest: int) -> str:
    """Return the lines of an input or output; Triton adds the batch in front, and takes no tensor without sizes."""
    element = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)
    if element not in _TYPES:
        raise ModelFileError(
            f"{value.name!r} is {element}, which Triton's onnxruntime backend does not take: convert it inside the "
            "model, as export_onnx(dtype='bf16', io_dtype='fp32') does."
        )
    sizes = [size if isinstance(size, int) else _ANY_SIZE for size in _sizes(value)[1 if largest else 0 :]]
    dims = f"  dims: [ {', '.join(map(str, sizes or [1]))} ]\n"
    reshape = "" if sizes else "  reshape {\n    shape: [ ]\n  }\n"
    name = text_encoding.CEscape(value.name, as_utf8=True)
    return f'  name: "{name}"\n  data_type: TYPE_{_TYPES[element]}\n{dims}{reshape}'


def _write(model: ModelFile, folder: Path, version: int, files: Mapping[str, str], *, overwrite: bool) -> None:
    """Put a new model, or a new version of one that is there, in its place by one rename."""
    place = folder / str(version)
    if folder.is_symlink() or place.is_symlink():
        raise ArgumentError(f"{str(place)!r} is a link: what is written there would change another folder. Remove it.")
    if place.exists() and not overwrite:
        raise ArgumentError(f"{str(place)!r} is there already. Give another version=, or overwrite=True.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # A server that polls the repository takes every folder in it for a model, also a half made one. Above the
        # repository it sees nothing, and in a model's own folder it passes over what is no number.
        aside = folder if folder.is_dir() else folder.parent.resolve().parent
        if aside.stat().st_dev != folder.parent.stat().st_dev or not os.access(aside, os.W_OK):
            aside = folder.parent
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=aside) as temporary:
            staging = Path(temporary) / folder.name
            for location in (_MODEL, *model.external):
                target = staging / str(version) / location
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(model.path if location == _MODEL else model.path.parent / location, target)
            for name, text in files.items():
                (staging / name).write_text(text, encoding="utf-8", newline="\n")
            if folder.exists():
                if place.exists():
                    place.rename(Path(temporary) / "before")
                (staging / str(version)).rename(place)
                for name in files if overwrite else files.keys() - {entry.name for entry in folder.iterdir()}:
                    (staging / name).replace(folder / name)
            else:
                staging.rename(folder)
    except OSError as error:
        raise UnwritablePathError(
            f"Cannot write {str(folder)!r}: {error.strerror or error}. Give one that you may write to, with room."
        ) from error
