"""Writing a model into a repository of Triton Inference Server."""

import os
import re
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernelError

from lit_gelu.display import Displayed
from lit_gelu.export.errors import ExportOptionError, ModelFileError
from lit_gelu.export.metadata import PREFIX, FileMetadata, read_metadata
from lit_gelu.export.runtime.model_file import ModelFile, read_model_file
from lit_gelu.export.runtime.providers import CPU
from lit_gelu.export.runtime.session import open_session
from lit_gelu.export.runtime.tuning_file import TuningChoice
from lit_gelu.export.serving.backend import backend_settings, choice_for, tuning_notes
from lit_gelu.export.serving.config import LABELS_FILE, ServingOptions, model_config, no_batch_note, to_text
from lit_gelu.export.serving.layout import MODEL_FILE, kept_text, require_free, require_no_link, write_version
from lit_gelu.export.serving.tensors import inputs_and_outputs

CONFIG_FILE = "config.pbtxt"
_LARGEST_VERSION = 2**63 - 1  # Triton's are int64
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, repr=False)
class TritonModel(Displayed):
    """What `write_triton_repository` wrote.

    Args:
        folder: The model's folder in the repository.
        version: The version.
        config: The text of its ``config.pbtxt``.
        notes: What its user should know.
    """

    folder: Path
    version: int
    config: str
    notes: tuple[str, ...] = ()

    @property
    def model(self) -> Path:
        """The ONNX file in the repository."""
        return self.folder / str(self.version) / MODEL_FILE

    def __str__(self) -> str:
        """Return the file, and one line a note."""
        return "\n".join([f"{self.model}, {self.folder / CONFIG_FILE}", *(f"  {note}" for note in self.notes)])

    def _summary(self) -> str:
        return f"{str(self.folder)!r}, version {self.version}"


def write_triton_repository(
    path: str | os.PathLike[str],
    repository: str | os.PathLike[str],
    *,
    device: str,
    name: str | None = None,
    version: int = 1,
    max_batch_size: int | None = None,
    preferred_batch_sizes: Sequence[int] = (),
    max_queue_delay_us: int = 0,
    instances: int = 1,
    warmup: Sequence[int] = (),
    tuning: bool | TuningChoice = True,
    keep_config: bool = False,
    overwrite: bool = False,
) -> TritonModel:
    """Write an ONNX file into a model repository of Triton Inference Server, configured for its onnxruntime backend.

    ``<repository>/<name>/config.pbtxt``, ``labels.txt`` if the file carries labels, and
    ``<repository>/<name>/<version>/model.onnx`` with the file's external data beside it. Inputs, outputs, their types
    and sizes are the file's own. All of it is made in a temporary folder first, where a polling server does not look: a
    new model appears in one rename, and so does a new version; replacing a version takes two, with the old one back in
    its place if the second fails. Before that onnxruntime opens the file, on the CPU.

    For float32 files on a GPU ``use_tf32`` is off, as in `lit_gelu.export.OnnxPredictor` and in the file's proof.

    Args:
        path: The file; any ONNX file, not only one of `lit_gelu.export.export_onnx`.
        repository: The repository's folder; it is made if it is not there.
        device: ``"cpu"`` or ``"gpu"``: where the server runs it.
        name: The model's name; by default the file's, without ``.onnx``.
        version: Its number, from 1 on. Which versions are served is left to Triton, whose default is the largest.
        max_batch_size: Rows of the largest batch that Triton may put together; 0 passes requests on as they are. By
            default 128 if every input and output begins with the same dynamic size, as `export_onnx` writes it, and no
            other size contains that one; else 0, as for a file whose rows see each other.
        preferred_batch_sizes: Sizes that the dynamic batcher tries to reach.
        max_queue_delay_us: How long it waits for more requests, in microseconds.
        instances: How many copies of the model run at once, on a GPU for each GPU.
        warmup: Batch sizes that run once, on zeros, before the model takes requests.
        tuning: Whether to take over what `lit_gelu.export.tune` kept beside the file for this machine; or such a
            choice, of the machine that will serve it.
        keep_config: Leave the configuration and labels of a model that is there already as they are.
        overwrite: Replace a version that is there already, and a configuration that is not the same.

    Returns:
        What was written.

    Raises:
        ExportOptionError: If an option does not exist or does not fit the file.
        ModelFileError: If the file is missing or damaged, or onnxruntime cannot open it, or a type is none of Triton's.
        TritonRepositoryError: If the version is there already, a configuration that is not the same, or a link.
        UnwritablePathError: If the repository cannot be written to.

    Example:
        >>> import tempfile, torch
        >>> from lit_gelu.export import export_onnx
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = export_onnx(torch.nn.GELU(), folder / "gelu.onnx", torch.zeros(2, 3))
        >>> written = write_triton_repository(folder / "gelu.onnx", folder / "repository", device="cpu")
        >>> sorted(p.relative_to(folder).as_posix() for p in (folder / "repository").rglob("*") if p.is_file())
        ['repository/gelu/1/model.onnx', 'repository/gelu/config.pbtxt']
        >>> print(written.config.split("output")[0])
        name: "gelu"
        backend: "onnxruntime"
        max_batch_size: 128
        input {
          name: "input"
          data_type: TYPE_FP32
          dims: [ 3 ]
        }
        <BLANKLINE>
    """
    path = Path(path)
    options = ServingOptions(
        device, max_batch_size, tuple(preferred_batch_sizes), max_queue_delay_us, instances, tuple(warmup)
    )
    model = read_model_file(path)
    name = _checked_name(path.stem if name is None else name, version, model)
    files, notes = _described(name, model, options, tuning)
    folder = Path(repository) / name
    require_no_link(folder, version)
    notes = (*notes, *_unopened(model, options.device))
    if keep_config and (folder / CONFIG_FILE).is_file():
        config, files = kept_text(folder / CONFIG_FILE), {}
    else:
        config = files[CONFIG_FILE]
    if not overwrite:
        require_free(folder, version, files)
    write_version(folder, version, model, files)
    return TritonModel(folder, version, config, notes)


def _checked_name(name: str, version: int, model: ModelFile) -> str:
    """Return the model's name if it, the version and the file's own layout are fit for a repository."""
    if not _NAME.fullmatch(name):
        raise ExportOptionError(
            f"name={name!r} is no name of a model, which is also a folder's. Give name= letters, digits, '_', '-', '.'."
        )
    if isinstance(version, bool) or not 1 <= version <= _LARGEST_VERSION:
        raise ExportOptionError(
            f"version={reprlib.repr(version)} is not accepted. Give a whole number from 1 to {_LARGEST_VERSION}."
        )
    if MODEL_FILE in model.external:
        raise ExportOptionError(
            f"{str(model.path)!r} keeps weights in a file called {MODEL_FILE!r}, which is the model's own name in a "
            "repository. Save the model with another location for its external data."
        )
    return name


def _described(
    name: str, model: ModelFile, options: ServingOptions, tuning: bool | TuningChoice
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the texts that stand beside a model's versions, and notes."""
    proto = onnx.load(model.path, load_external_data=False)
    inputs, outputs = inputs_and_outputs(proto, repr(str(model.path)))
    about = _metadata(proto, model)
    if options.device == "cpu" and about is not None and about.dtype == "bf16":
        raise ExportOptionError("onnxruntime has no bfloat16 kernels on the CPU. Give device='gpu', or export fp32.")
    choice = choice_for(model.path, options.device, tuning)
    settings = {} if choice is None else choice.settings
    backend = backend_settings(options.device, settings, sixteen_bit=model.sixteen_bit)
    labels = () if about is None else about.labels
    depend = about is not None and about.rows_depend
    config = model_config(name, inputs, outputs, options, backend, labels=bool(labels), rows_depend=depend)
    files = {CONFIG_FILE: to_text(config)}
    if labels:
        files[LABELS_FILE] = "".join(f"{' '.join(label.splitlines())}\n" for label in labels)
    notes = [no_batch_note([*inputs, *outputs], rows_depend=depend), *tuning_notes(choice, backend.left_out, model)]
    if about is not None and about.parity.get("passed") is False:
        notes.append(f"{model.path.name} failed its comparison with PyTorch: see the report beside it.")
    return files, tuple(note for note in notes if note)


def _unopened(model: ModelFile, device: str) -> list[str]:
    """Have onnxruntime open the file, as the server will; return a note where that cannot be tried here."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        open_session(model.path, [CPU], options, model=model)
    except ModelFileError as error:
        if device == "gpu" and isinstance(error.__cause__, NoKernelError):
            return [
                "onnxruntime could not open the file here: it has operators that run on a GPU only. Try the server."
            ]
        raise
    return []


def _metadata(proto: onnx.ModelProto, model: ModelFile) -> FileMetadata | None:
    """Return what the file says of itself, if lit-gelu wrote it."""
    properties = {entry.key: entry.value for entry in proto.metadata_props}
    if not any(key.startswith(PREFIX) for key in properties):
        return None
    return read_metadata(properties, repr(str(model.path)))
