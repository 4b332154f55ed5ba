"""Do a file's outputs have the names, types and labels that the module's have?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lit_gelu.export.metadata import FileMetadata

TYPES: Mapping[str, str] = {
    "float16": "tensor(float16)",
    "bfloat16": "tensor(bfloat16)",
    "float32": "tensor(float)",
    "float64": "tensor(double)",
    "int8": "tensor(int8)",
    "int16": "tensor(int16)",
    "int32": "tensor(int32)",
    "int64": "tensor(int64)",
    "uint8": "tensor(uint8)",
    "bool": "tensor(bool)",
}
"""How onnxruntime calls the types that torch calls by these names."""


@dataclass(frozen=True)
class OutputSignature:
    """What the module says of one of its outputs.

    Args:
        name: Its name in the file.
        dtype: In torch's name.
        shape: On the sample.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


def output_faults(
    wanted: Sequence[OutputSignature], there: Sequence[tuple[str, str]], metadata: FileMetadata
) -> list[str]:
    """Say which outputs have another name or type than the module gives them, and whether the labels fit.

    Args:
        wanted: What the module returns in float32.
        there: Name and type of the file's outputs, as onnxruntime gives them.
        metadata: What the file says of itself.

    Returns:
        One sentence each. Another number of outputs is no fault here: the comparison refuses it.
    """
    if len(wanted) != len(there):
        return []
    floating = {"fp16": "float16", "bf16": "bfloat16"}.get("" if metadata.io_dtype == "fp32" else metadata.dtype)
    faults = []
    for output, (name, type_name) in zip(wanted, there, strict=True):
        if name != output.name:
            faults.append(f"output {output.name!r} of the module is called {name!r} in the file.")
        dtype = floating if floating is not None and output.dtype == "float32" else output.dtype
        if output.dtype in TYPES and type_name != TYPES[dtype]:
            faults.append(f"output {name!r} is {type_name} in the file, and should be {TYPES[dtype]}.")
    classes = wanted[0].shape[-1] if wanted and wanted[0].shape else 0
    if metadata.labels and len(metadata.labels) != classes:
        faults.append(f"the file has {len(metadata.labels)} labels for {classes} values of {wanted[0].name!r}.")
    return faults
