"""What an export is asked for, and what its file says of itself in ``lit_gelu.*``: no path of a machine."""

import difflib
import hashlib
import importlib.metadata
import json
import os
import re
import secrets
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import torch
from torch import nn

from lit_gelu.activations import ActivationSpec
from lit_gelu.activations.onnx_recipes import LOWERINGS
from lit_gelu.display import Displayed
from lit_gelu.errors import ArgumentError, ExportError, ModelFileError, SpecError, shown
from lit_gelu.export.lowering.policy import DTYPES, POLICIES, TARGETS, checked_opset
from lit_gelu.export.runtime.model_file import operator_name, parsed_file, read_model_file
from lit_gelu.files import is_file, parse_json, synchronise, temporary_folder, write_atomically
from lit_gelu.surgery.sites import without_wrappers

_DTYPE_NAMES: Mapping[object, str] = {
    None: "fp32", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", "float32": "fp32",
    "float16": "fp16", "bfloat16": "bf16",
}  # fmt: skip


_CHOICES: Mapping[str, Sequence[str]] = {
    "approximate": ("as_trained", "none", "exact", "tanh", "sigmoid"),
    "lowering": ("auto", *LOWERINGS),
    "target": TARGETS,
    "dtype": tuple(DTYPES),
    "policy": POLICIES,
    "io_dtype": ("same", "fp32"),
}


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What an export was asked for; `checked` gives it in canonical form. `export_onnx` says what each option means."""

    approximate: str = "as_trained"
    lowering: str = "auto"
    target: str = "portable"
    dtype: str = "fp32"
    policy: str = "strict"
    opset: int | None = None
    keep_fp32: tuple[str, ...] = ()
    io_dtype: str = "same"
    softmax: bool = False
    labels: tuple[str, ...] = ()
    dynamic_shapes: tuple[Any, ...] | Mapping[str, Any] = ()

    @classmethod
    def checked(cls, **values: Any) -> "ExportOptions":
        """Return options in canonical form; `ArgumentError` if one does not exist, or two do not fit each other."""
        options = vars(ExportOptions(**values)).copy()
        if isinstance(options["dtype"], Hashable):
            options["dtype"] = _DTYPE_NAMES.get(options["dtype"], options["dtype"])
        for name, choices in _CHOICES.items():
            if options[name] not in choices:
                near = difflib.get_close_matches(str(options[name]).lower(), choices, n=1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise ArgumentError(
                    f"Unknown {name}={options[name]!r}.{hint} Accepted: {', '.join(map(repr, choices))}."
                )
        if options["approximate"] == "exact":
            options["approximate"] = "none"
        for name in ("keep_fp32", "labels"):
            texts = options[name]
            is_list = isinstance(texts, Sequence) and not isinstance(texts, str)
            # Half a pair of UTF-16, which Python makes of a shell's bytes that are no text, can stand in no file.
            if not is_list or not all(isinstance(t, str) and t == t.encode(errors="ignore").decode() for t in texts):
                raise ArgumentError(f"{name}={texts!r} is not accepted. Give a list of texts.")
            options[name] = tuple(texts)
        if not isinstance(options["softmax"], bool):  # a text such as "no" would be true
            raise ArgumentError(f"softmax={options['softmax']!r} is not accepted. Accepted: True, False.")
        options["dynamic_shapes"] = options["dynamic_shapes"] or ()
        options["opset"] = checked_opset(options["opset"], options["target"])
        if options["lowering"] == "contrib" and options["target"] == "tensorrt":
            raise ArgumentError(
                "lowering='contrib' does not go with target='tensorrt'. Use lowering='auto', or target='ort-cuda'."
            )
        if options["dtype"] == "fp32" and (options["keep_fp32"] or options["io_dtype"] != "same"):
            raise ArgumentError("keep_fp32= and io_dtype= are for dtype='fp16' and 'bf16' alone. Leave them out.")
        return ExportOptions(**options)


PREFIX = "lit_gelu."
ROWS_DEPEND = (  # the note on a file of which that is true
    "The rows of the first axis see each other: what one gives depends on those beside it. Calls cannot be joined, "
    "padded or divided along it."
)


@dataclass(frozen=True, repr=False)
class SiteRecord(Displayed):
    """One activation site as the file records it."""

    site: str  # fully qualified name; for a call of a function, the calling module and the activation, with a colon
    spec: str  # the activation's spec as text
    row: str  # key of its row in the lowering table; empty for what torch decomposed itself
    lowering: str  # whose recipe was taken: native, primitives, contrib; torch for torch's own decomposition
    operators: tuple[str, ...]  # of one call
    calls: int  # how often the graph calls it
    recipe: str = ""  # as text, behind fp32: where it is computed in float32 in a file of another dtype

    def __str__(self) -> str:
        """Return one line for a person."""
        name = self.site or "(the module itself)"
        if not self.row:
            return f"{name}: {self.spec}, as torch decomposes it"
        if not self.calls:
            return f"{name}: {self.spec}, which the graph never calls"
        calls = "1 call" if self.calls == 1 else f"{self.calls} calls"
        return f"{name}: {self.spec} -> {' '.join(self.operators)} ({self.lowering}, {calls})"

    _summary = __str__


@dataclass(frozen=True, kw_only=True)
class FileMetadata(ExportOptions):
    """What was exported, and how: the options, here with the opset that was taken, and what became of them."""

    approximate: str
    opset: int
    model_class: str
    sites: tuple[SiteRecord, ...]
    versions: Mapping[str, str] = field(default_factory=lambda: versions())  # of distributions that wrote the file
    preprocessing: str = ""  # classes of the preprocessing that is a part of the file, which then takes raw pixels
    notes: tuple[str, ...] = ()  # what a user of the file should know
    rows_depend: bool = False  # whether rows of the first axis see each other, so that calls cannot be joined or padded
    weights: str = ""  # the `weights_digest` of the module
    optimized: str = ""  # for which models onnxruntime's optimiser wrote it anew: sites have no nodes of their own then
    parity: Mapping[str, Any] = field(default_factory=dict)  # what `write_proof` added

    def to_properties(self) -> dict[str, str]:
        """Return the metadata as ONNX stores it: text by key, which begins with ``lit_gelu.``."""
        plain = {**vars(self), "sites": [vars(site) for site in self.sites]}
        return {
            PREFIX + key: value if isinstance(value, str) else json.dumps(value, sort_keys=True)
            for key, value in plain.items()
        }


# What each entry that is no plain text holds as JSON: [form] is a list, {str: form} has any keys.
_FORMS: Mapping[str, Any] = {
    "opset": int,
    "versions": {str: str},
    "keep_fp32": [str],
    "notes": [str],
    "labels": [str],
    "rows_depend": bool,
    "softmax": bool,
    "dynamic_shapes": {str: {str: str}},
    "parity": {str: object},
    "sites": [{entry.name: str for entry in fields(SiteRecord)} | {"operators": [str], "calls": int}],
}


def _has_form(value: Any, form: Any) -> bool:
    if isinstance(form, list):
        return isinstance(value, list) and all(_has_form(entry, form[0]) for entry in value)
    if isinstance(form, dict) and str in form:
        return isinstance(value, dict) and all(_has_form(entry, form[str]) for entry in value.values())
    if isinstance(form, dict):
        alike = isinstance(value, dict) and value.keys() == form.keys()
        return alike and all(_has_form(value[key], form[key]) for key in form)
    return form is object or type(value) is form


def read_metadata(properties: Mapping[str, str], file: str) -> FileMetadata:
    """Return what a file says of itself; `ModelFileError` if this release did not write it, or an entry is damaged."""
    entries = {key.removeprefix(PREFIX): text for key, text in properties.items() if key.startswith(PREFIX)}
    names = {entry.name for entry in fields(FileMetadata)}
    entries = {"weights": "", "optimized": "", **entries}
    if missing := names - entries.keys():
        raise ModelFileError(
            f"{file} does not carry lit-gelu's metadata (lit_gelu.{min(missing)} is missing), so it is not known how "
            "its activations were lowered. Write it with lit_gelu.export.export_onnx."
        )
    values: dict[str, Any] = {name: entries[name] for name in names}
    try:
        for name, form in _FORMS.items():
            values[name] = parse_json(values[name])
            json.dumps(values[name], ensure_ascii=False).encode()  # fails for half a pair of UTF-16: no file takes it
            if not _has_form(values[name], form):
                raise ValueError(shown(values[name]))  # noqa: TRY301 - as what JSON raises
        sites = {row["site"]: SiteRecord(**{**row, "operators": tuple(row["operators"])}) for row in values["sites"]}
        specs = [ActivationSpec.parse(site.spec) for site in sites.values()]
        if len(specs) < len(values["sites"]):
            raise ValueError("a site stands there twice")  # noqa: TRY301
        sizes = {key: {int(dim): size for dim, size in axes.items()} for key, axes in values["dynamic_shapes"].items()}
    except (ValueError, SpecError) as error:
        raise ModelFileError(f"{file} is damaged: {PREFIX}{name}: {error}. Copy or export it again.") from error
    lists = {name: tuple(values[name]) for name in ("keep_fp32", "notes", "labels")}
    return FileMetadata(**{**values, **lists, "dynamic_shapes": sizes, "sites": tuple(sites.values())})


def metadata_of(path: str | os.PathLike[str]) -> FileMetadata:
    """Return what the file at a path says of itself; see `read_metadata`."""
    return recorded_metadata(path) or read_metadata({}, repr(os.fspath(path)))


def recorded_metadata(path: str | os.PathLike[str]) -> FileMetadata | None:
    """Return what a file says of itself, ``None`` if it has no entry of ours at all: then others wrote it."""
    properties = {entry.key: entry.value for entry in parsed_file(read_model_file(path).path).metadata_props}
    is_ours = any(key.startswith(PREFIX) for key in properties)
    return read_metadata(properties, repr(os.fspath(path))) if is_ours else None


def versions() -> dict[str, str]:
    """Return the versions of the distributions that write a file, by their names."""
    return {name: importlib.metadata.version(name) for name in ("lit-gelu", "torch", "onnx", "onnxscript")}


def strip_origin(model: ir.Model) -> None:
    """Take out what the exporter noted of the source: stack traces with local paths and code, and class names."""
    model.metadata_props.clear()
    model.doc_string = None
    graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    parts: list[Any] = [*model.graph.inputs, *model.graph.initializers.values()]
    for graph in graphs:
        nodes = list(ir.traversal.RecursiveGraphIterator(graph))
        parts += [graph, *nodes, *(value for node in nodes for value in node.outputs)]
    for part in parts:
        kept = {key: value for key, value in part.metadata_props.items() if key.startswith(PREFIX)}
        part.metadata_props.clear()
        part.metadata_props.update(kept)
        part.doc_string = None


def weights_digest(module: nn.Module) -> str:
    """Return a digest of a module's parameters and buffers, which tells whether it has changed."""
    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        digest.update(name.encode())
        if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided and not tensor.is_quantized:
            digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def class_path(module: nn.Module) -> str:
    """Return the dotted path of a module's class; of a compiled one, of the module within."""
    cls = type(without_wrappers(module))
    return f"{cls.__module__}.{cls.__qualname__}"


EXTERNAL_DATA_ABOVE = 2 * 1024**3 - 64 * 1024**2  # bytes: protobuf's limit is 2 GiB; the rest is for the graph itself


def save_model(model: ir.Model, path: str | os.PathLike[str]) -> None:
    """Check a model and write it in one rename; if anything fails, what was at ``path`` stays."""
    # Above 2 GB the weights go to a file beside it. That file has a new name each time, so that the old model and its
    # weights stay together until the new model takes the old one's place. Where the path is a link, that is beside the
    # file which it names.
    target = Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)  # noqa: PTH114 - see `is_file`
    size = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value)
    data = target.with_name(f"{target.name}.{secrets.token_hex(4)}.data") if size > EXTERNAL_DATA_ABOVE else None
    old = _data_files(target) if is_file(target) else []
    try:
        onnx.checker.check_model(without_weights(model), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportError(
            f"onnx's checker refuses the model for {str(path)!r}; nothing was written: {error}"
        ) from error
    try:
        with write_atomically(target) as temporary, temporary_folder(target) as folder:
            written = folder / target.name
            ir.save(model, written, external_data=None if data is None else data.name)
            if data is not None:
                synchronise(folder / data.name)
                (folder / data.name).rename(data)
            written.replace(temporary)
    except BaseException:
        if data is not None:
            data.unlink(missing_ok=True)
        raise
    for file in old:
        file.unlink(missing_ok=True)


def without_weights(model: ir.Model) -> onnx.ModelProto:
    """Return a model as it is written, but with its weights as inputs: the graph alone, without a copy of them."""
    initializers = dict(model.graph.initializers)
    weights = [value for value in initializers.values() if value.const_value and value.const_value.nbytes > 1024]
    inputs = [*model.graph.inputs]
    try:
        for value in weights:
            del model.graph.initializers[str(value.name)]
        model.graph.inputs.extend(weights)
        return ir.to_proto(model)
    finally:
        del model.graph.inputs[len(inputs) :]
        model.graph.initializers.clear()
        model.graph.initializers.update(initializers)


def _data_files(path: Path) -> list[Path]:
    """Return the external data files of a model that is there already, as far as this module wrote them."""
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception:  # noqa: BLE001 - whatever is there, if it is no ONNX model it has no data files of ours
        return []
    ours = re.compile(re.escape(path.name) + r"\.[0-9a-f]{8}\.data")
    entries = [entry for tensor in model.graph.initializer for entry in tensor.external_data if entry.key == "location"]
    return [path.parent / name for name in {entry.value for entry in entries} if ours.fullmatch(name)]


def census(model: onnx.ModelProto) -> Counter[str]:
    """Count the operators of a model, those of subgraphs not included."""
    return Counter(map(operator_name, model.graph.node))
