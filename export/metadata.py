"""What an export is asked for, and what its file says of itself in ``lit_gelu.*``: no path of a machine."""

import difflib
import hashlib
import importlib.metadata
import json
import os
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
import onnx
import onnx_ir as ir
import torch
from torch import nn

from lit_gelu.activations import ActivationSpec
from lit_gelu.display import Displayed
from lit_gelu.errors import ArgumentError, ExportError, ModelFileError, SpecError, shown
from lit_gelu.export.inputs import require_readable
from lit_gelu.export.lowering.policy import DEFAULT_OPSET, DTYPES, POLICIES, TARGETS, Target, checked_opset
from lit_gelu.export.runtime.model_file import parsed_file, read_model_file
from lit_gelu.files import is_file, parse_json, synchronise, temporary_folder, write_atomically
from lit_gelu.surgery.sites import without_wrappers

Approximate = Literal["as_trained", "none", "exact", "tanh", "sigmoid"]
_DTYPE_NAMES: Mapping[object, str] = {
    None: "fp32", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", "float32": "fp32",
    "float16": "fp16", "bfloat16": "bf16",
}  # fmt: skip


def _option(default: Any, about: str, choices: Iterable[str] = ()) -> Any:
    """Return a field that says what `lit_gelu.cli.export` shows of an option."""
    return field(default=default, metadata={"about": about, "choices": tuple(choices)})


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What an export was asked for; `checked` gives it in canonical form. `export_onnx` says what each option means."""

    approximate: str = _option("as_trained", "form of every GELU", get_args(Approximate))
    lowering: str = _option("auto", "operators of the activations", ("auto", "native", "primitives", "contrib"))
    target: str = _option("portable", "the runtime it is for", TARGETS)
    dtype: str = _option("fp32", "of weights and activations", DTYPES)
    policy: str = _option("strict", "as accurate as PyTorch, or the fastest known", POLICIES)
    opset: int | None = _option(None, "version of the standard operators")
    keep_fp32: tuple[str, ...] = _option((), "operators, or patterns over names of modules, that stay in float32")
    io_dtype: str = _option("same", "of inputs and outputs of an fp16 or bf16 file", ("same", "fp32"))
    softmax: bool = _option(False, "whether the file ends with a softmax")
    labels: tuple[str, ...] = _option((), "names of the classes, in their order")
    dynamic_shapes: tuple[Any, ...] | Mapping[str, Any] = _option(
        (), "open sizes: INPUT:AXIS=NAME, sequence, image-size"
    )

    @classmethod
    def all(cls) -> tuple[Field[Any], ...]:
        """Return the options, with a name, a default, what it is ``about`` and its ``choices`` each."""
        return fields(ExportOptions)

    @classmethod
    def checked(cls, **values: Any) -> Self:
        """Return options in canonical form; `ArgumentError` if one does not exist, or two do not fit each other."""
        values = {option.name: values.get(option.name, option.default) for option in cls.all()}
        if isinstance(values["dtype"], (str, torch.dtype, type(None))):  # what else is given may have no hash
            values["dtype"] = _DTYPE_NAMES.get(values["dtype"], values["dtype"])
        for option in cls.all():
            if option.metadata["choices"]:
                _require_choice(option.name, values[option.name], option.metadata["choices"])
        if values["approximate"] == "exact":
            values["approximate"] = "none"
        for name in ("keep_fp32", "labels"):
            values[name] = _texts(name, values[name])
        if not isinstance(values["softmax"], (bool, np.bool_)):  # a text such as "no" would be true
            raise ArgumentError(f"softmax={values['softmax']!r} is not accepted. Accepted: True, False.")
        values["softmax"] = bool(values["softmax"])
        values["dynamic_shapes"] = require_readable(values["dynamic_shapes"] or ())
        values["opset"] = checked_opset(values["opset"], values["target"])
        if values["lowering"] == "contrib" and values["target"] == "tensorrt":
            raise ArgumentError(
                "lowering='contrib' does not go with target='tensorrt', whose parser knows standard operators only. "
                "Use lowering='auto', or target='ort-cuda'."
            )
        if values["dtype"] == "fp32" and (values["keep_fp32"] or values["io_dtype"] != "same"):
            raise ArgumentError(
                "keep_fp32= and io_dtype= are for dtype='fp16' and 'bf16'; in an fp32 file everything is float32. "
                "Leave them out."
            )
        return cls(**values)

    @property
    def destination(self) -> Target:
        """What decides which operators activations become."""
        return Target(self.target, self.dtype, self.policy)

    @property
    def traced_opset(self) -> int:
        """The opset to trace with."""
        return DEFAULT_OPSET if self.opset is None else self.opset


def _texts(option: str, value: object) -> tuple[str, ...]:
    texts = tuple(value) if isinstance(value, Iterable) else (None,)
    # Half a pair of UTF-16, which is what Python makes of a shell's bytes that are no text, can stand in no file.
    texts_only = all(isinstance(text, str) and text == text.encode(errors="ignore").decode() for text in texts)
    if isinstance(value, str) or not texts_only:
        raise ArgumentError(f"{option}={value!r} is not accepted. Give a list of texts.")
    return texts


def _require_choice(option: str, value: object, choices: Iterable[str]) -> None:
    """Refuse a value that does not exist; near values and the whole list are in the message."""
    choices = list(choices)
    if isinstance(value, str) and value in choices:
        return
    near = difflib.get_close_matches(str(value).lower(), choices, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ArgumentError(f"Unknown {option}={value!r}.{hint} Accepted: {', '.join(map(repr, choices))}.")


PREFIX = "lit_gelu."
_VERSIONS = ("lit-gelu", "torch", "onnx", "onnxscript")


@dataclass(frozen=True, repr=False)
class SiteRecord(Displayed):
    """One activation site as the file records it.

    Args:
        site: Fully qualified name; for a function call, the calling module and the activation joined by a colon.
        spec: The activation's spec as text.
        row: Key of its row in the lowering table; empty for what torch decomposed itself.
        lowering: ``native``, ``primitives`` or ``contrib``: whose recipe was taken; ``torch`` for torch's own
            decomposition.
        operators: The operators of one call.
        calls: How often the graph calls it.
        recipe: The recipe as text, behind ``fp32:`` where it is computed in float32 in a file of another dtype.
    """

    site: str
    spec: str
    row: str
    lowering: str
    operators: tuple[str, ...]
    calls: int
    recipe: str = ""

    def __str__(self) -> str:
        """Return one line for a person."""
        name = self.site or "(the module itself)"
        if not self.row:
            return f"{name}: {self.spec}, as torch decomposes it"
        if not self.calls:
            return f"{name}: {self.spec}, which the graph never calls"
        calls = "1 call" if self.calls == 1 else f"{self.calls} calls"
        return f"{name}: {self.spec} -> {' '.join(self.operators)} ({self.lowering}, {calls})"

    def _summary(self) -> str:
        return str(self)


@dataclass(frozen=True, kw_only=True)
class FileMetadata(ExportOptions):
    """What was exported, and how: the options, here with the opset that was taken, and what became of them.

    Args:
        model_class: The module's class.
        sites: The activations.
        versions: Distribution names and versions that wrote the file.
        preprocessing: The class of the preprocessing that is a part of the file, which then takes raw pixels, or of
            each of its steps; empty if there is none.
        notes: What a user of the file should know.
        rows_depend: Whether rows of the first axis see each other, so that calls cannot be joined, padded or divided.
        weights: The `weights_digest` of the module; empty in files that were written before there was one.
        parity: What `lit_gelu.export.proof.record_parity` added after a comparison; empty before.
    """

    approximate: str
    opset: int
    model_class: str
    sites: tuple[SiteRecord, ...]
    versions: Mapping[str, str] = field(default_factory=lambda: versions())
    preprocessing: str = ""
    notes: tuple[str, ...] = ()
    rows_depend: bool = False
    weights: str = ""
    parity: Mapping[str, Any] = field(default_factory=dict)

    def to_properties(self) -> dict[str, str]:
        """Return the metadata as ONNX stores it: text by key, which begins with ``lit_gelu.``."""
        plain = {**vars(self), "sites": [vars(site) for site in self.sites]}
        return {
            PREFIX + key: value if isinstance(value, str) else json.dumps(value, sort_keys=True)
            for key, value in plain.items()
        }


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _are_texts_by_name(value: Any) -> bool:
    return isinstance(value, dict) and _are_texts(list(value.values()))


def _are_sizes(value: Any) -> bool:
    """Return whether a value has names of sizes by input and axis."""
    axes = list(value.values()) if isinstance(value, dict) else [value]
    return all(_are_texts_by_name(names) and all(re.fullmatch("[0-9]{1,2}", axis) for axis in names) for names in axes)


def _are_sites(value: Any) -> bool:
    """Return whether a value has sites, each of them once."""
    are_records = isinstance(value, list) and all(
        isinstance(site, dict)
        and site.keys() == {entry.name for entry in fields(SiteRecord)}
        and _are_texts(site["operators"])
        and _is_count(site["calls"])
        and all(isinstance(site[key], str) for key in site.keys() - {"operators", "calls"})
        for site in value
    )
    return are_records and len({site["site"] for site in value}) == len(value)


# What each entry that is no plain text must hold, as JSON.
_ACCEPTS: Mapping[str, Callable[[Any], bool]] = {
    "opset": _is_count,
    "versions": _are_texts_by_name,
    "keep_fp32": _are_texts,
    "notes": _are_texts,
    "labels": _are_texts,
    "rows_depend": lambda value: isinstance(value, bool),
    "softmax": lambda value: isinstance(value, bool),
    "dynamic_shapes": _are_sizes,
    "parity": lambda value: isinstance(value, dict),
    "sites": _are_sites,
}


def read_metadata(properties: Mapping[str, str], file: str) -> FileMetadata:
    """Return what a file says of itself; `ModelFileError` if this release did not write it, or an entry is damaged."""
    entries = {key.removeprefix(PREFIX): text for key, text in properties.items() if key.startswith(PREFIX)}
    names = {entry.name for entry in fields(FileMetadata)}
    entries.setdefault("weights", "")
    if missing := names - entries.keys():
        raise ModelFileError(
            f"{file} does not carry lit-gelu's metadata (lit_gelu.{min(missing)} is missing), so it is not known how "
            "its activations were lowered. Write it with lit_gelu.export.export_onnx."
        )
    values: dict[str, Any] = {name: entries[name] for name in names}
    for name, accepts in _ACCEPTS.items():
        try:
            values[name] = parse_json(values[name])
            json.dumps(
                values[name], ensure_ascii=False
            ).encode()  # half a pair of UTF-16: no file and terminal takes it
        except ValueError as error:
            raise ModelFileError(f"{file} is damaged: {PREFIX}{name} is no JSON. Copy or export it again.") from error
        if not accepts(values[name]):
            raise ModelFileError(
                f"{file} is damaged: {PREFIX}{name} holds {shown(values[name])}. Copy or export it again."
            )
    try:
        for site in values["sites"]:
            ActivationSpec.parse(site["spec"])
    except SpecError as error:
        raise ModelFileError(f"{file} is damaged: {PREFIX}sites names no activation. {error}") from error
    lists = {name: tuple(values[name]) for name in ("keep_fp32", "notes", "labels")}
    sizes = {name: {int(axis): size for axis, size in axes.items()} for name, axes in values["dynamic_shapes"].items()}
    sites = tuple(SiteRecord(**{**site, "operators": tuple(site["operators"])}) for site in values["sites"])
    return FileMetadata(**{**values, **lists, "dynamic_shapes": sizes, "sites": sites})


def metadata_of(path: str | os.PathLike[str]) -> FileMetadata:
    """Return what the file at a path says of itself; see `read_metadata`."""
    model = parsed_file(read_model_file(path).path)
    return read_metadata({entry.key: entry.value for entry in model.metadata_props}, repr(os.fspath(path)))


def versions() -> dict[str, str]:
    """Return the versions of the distributions that write a file, by their names."""
    return {name: importlib.metadata.version(name) for name in _VERSIONS}


def strip_origin(model: ir.Model) -> None:
    """Take out what the exporter noted of the source: stack traces with local paths and code, and class names."""
    graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    model.metadata_props.clear()
    model.doc_string = None
    for graph in graphs:
        _strip(graph)
        for node in ir.traversal.RecursiveGraphIterator(graph):
            _strip(node)
            for value in node.outputs:
                _strip(value)
    for value in [*model.graph.inputs, *model.graph.initializers.values()]:
        _strip(value)


def _strip(part: ir.Graph | ir.Function | ir.Node | ir.Value) -> None:
    """Keep only lit-gelu's own properties, and no documentation text."""
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
    """Write a model's file and the weights beside it: both whole, or none."""
    with temporary_folder(target) as folder:
        written = folder / target.name
        ir.save(model, written, external_data=data.name)
        _check(written, str(target))
        synchronise(folder / data.name)
        (folder / data.name).rename(data)
        written.replace(temporary)


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
    """Count the operators of a model, those of subgraphs not included."""
    return Counter(f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in model.graph.node)
