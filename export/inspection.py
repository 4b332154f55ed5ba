"""`inspect_onnx`: all that an ONNX file says of itself, and the activations that can be told from its operators."""

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import onnx_ir as ir

from lit_gelu.activations import ActivationRegistry
from lit_gelu.display import Displayed, HtmlTable, printable
from lit_gelu.export.graph_activations import graph_activations
from lit_gelu.export.metadata import FileMetadata, recorded_metadata
from lit_gelu.export.quantization import QuantizationRecord, read_record
from lit_gelu.export.runtime.model_file import INT8_RECORD, read_model_file
from lit_gelu.export.site_nodes import valid_onnx

_OPTIONS = ("approximate", "lowering", "target", "dtype", "policy")


@dataclass(frozen=True, kw_only=True, repr=False)
class FileInspection(Displayed):
    """What a file says of itself."""

    file: str  # its name
    size: int  # bytes, weights beside it included
    producer: str  # what wrote it, as it says
    opsets: Mapping[str, int]  # version by operator domain; the standard one is the empty text
    # By name the element type and the sizes; a name, or None, where any size fits.
    inputs: Mapping[str, tuple[str, tuple[int | str | None, ...]]]
    outputs: Mapping[str, tuple[str, tuple[int | str | None, ...]]]
    weights: Mapping[str, int]  # number of stored values by element type
    operators: Mapping[str, int]  # how often each occurs; those of other domains as domain::name
    # How often each activation is computed, by its canonical spec: as recorded, else as recognised of the operators; a
    # formula that is no registered activation by what it is like.
    activations: Mapping[str, int]
    metadata: FileMetadata | None = None  # what `export_onnx` recorded
    quantization: QuantizationRecord | None = None  # how it was quantised, if `quantize_onnx` did it

    def to_json(self) -> str:
        """Return all of it as JSON."""
        return json.dumps(asdict(self), indent=2, sort_keys=True)

    def __str__(self) -> str:
        """Return it as text, a fact a line."""
        lines = [
            f"{self.file}: {self.size:,} bytes, written by {self.producer or 'an unnamed program'}",
            "opset: " + ", ".join(f"{name or 'standard'} {version}" for name, version in self.opsets.items()),
            *(f"input {name}: {_port(*port)}" for name, port in self.inputs.items()),
            *(f"output {name}: {_port(*port)}" for name, port in self.outputs.items()),
            f"weights: {', '.join(f'{count:,} {kind}' for kind, count in self.weights.items()) or 'none'}",
            f"operators: {_counted(self.operators)}",
            f"activations: {_counted(self.activations) or 'none that is known'}",
            *_of_metadata(self.metadata),
            *([] if self.quantization is None else [f"int8: {self.quantization}"]),
        ]
        return "\n".join(map(printable, lines))

    def _summary(self) -> str:
        counted = _counted(self.activations) or "none that is known"
        return f"{self.file!r}, {self.size:,} bytes, {sum(self.operators.values())} nodes, activations: {counted}"

    def _html_table(self) -> HtmlTable:
        lines = (line.partition(": ") for line in str(self).split("\n"))
        return HtmlTable(("", "value"), [(name, value) for name, _, value in lines], self.file)


def inspect_onnx(path: str | os.PathLike[str], registry: ActivationRegistry | None = None) -> FileInspection:
    """Say what an ONNX file is: its opset, sizes, weights and activations, how it was made and proved.

    In a file of another exporter, activations are recognised by their formulas and by onnxruntime's own operators.

    Args:
        path: The file.
        registry: Whose activations are recognised beside this package's own.

    Returns:
        What it says; nothing is run.

    Raises:
        ModelFileError: If there is no such file, it is no whole ONNX model, or an entry of its metadata is damaged.

    Example:
        >>> import pathlib, tempfile, torch
        >>> from lit_gelu.export import export_onnx
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "net.onnx"
        >>> _ = export_onnx(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.GELU()), path, torch.zeros(1, 2))
        >>> inspect_onnx(path).activations
        {'gelu': 1}
    """
    file = read_model_file(path)
    with valid_onnx(path):
        model = ir.load(file.path)  # weights in files of their own are not read
        activations = Counter(each.spec or each.operator for each in graph_activations(path, registry))
    weights: Counter[str] = Counter()
    for value in model.graph.initializers.values():
        if value.const_value is not None:
            weights[value.const_value.dtype.name.lower()] += value.const_value.size
    properties = model.metadata_props
    return FileInspection(
        file=file.path.name,
        size=sum(part.stat().st_size for part in [file.path, *(file.path.parent / name for name in file.external)]),
        producer=f"{model.producer_name or ''} {model.producer_version or ''}".strip(),
        opsets=dict(file.opsets),
        inputs=_ports(model.graph.inputs),
        outputs=_ports(model.graph.outputs),
        weights=dict(weights.most_common()),
        operators=dict(file.operators),
        activations=dict(activations.most_common()),
        metadata=recorded_metadata(path),
        quantization=read_record(properties, repr(str(path))) if INT8_RECORD in properties else None,
    )


def _ports(values: Any) -> dict[str, tuple[str, tuple[int | str | None, ...]]]:
    return {
        str(value.name): (
            "unknown" if value.dtype is None else value.dtype.name.lower(),
            tuple(size if isinstance(size, int) else size.value for size in value.shape or ()),
        )
        for value in values
    }


def _port(kind: str, shape: tuple[int | str | None, ...]) -> str:
    return f"{kind} [{', '.join('any' if size is None else str(size) for size in shape)}]"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(name if count == 1 else f"{count} {name}" for name, count in counts.items())


def _of_metadata(metadata: FileMetadata | None) -> list[str]:
    if metadata is None:
        return ["lit-gelu: did not write this file"]
    versions = ", ".join(f"{name} {version}" for name, version in metadata.versions.items())
    options = ", ".join(f"{name}={getattr(metadata, name)}" for name in _OPTIONS)
    verdict = "passed" if metadata.parity.get("passed") is True else "failed"
    figures = (f"{name} {value}" for name, value in metadata.parity.items() if name != "passed")
    return [
        f"model: {metadata.model_class}, {options}",
        f"made with: {versions}",
        *([f"preprocessing: {metadata.preprocessing}"] if metadata.preprocessing else []),
        *([f"labels: {', '.join(metadata.labels)}"] if metadata.labels else []),
        *(f"site {site}" for site in metadata.sites),
        *(f"note: {note}" for note in metadata.notes),
        f"proof: {', '.join([verdict, *figures]) if metadata.parity else 'none; lit-gelu parity makes one'}",
    ]
