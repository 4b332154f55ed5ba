"""The kernels of onnxruntime's CUDA provider as a table, `cuda_kernels.txt`: what it is made of, and how it is read.

``python tests/cuda_kernel_table.py`` writes it anew, of the installed release.
"""

import tempfile
from collections import defaultdict
from pathlib import Path

import onnx

DATA = Path(__file__).with_name("cuda_kernels.txt")
RELEASE = "1.31.1"
NEWEST, OLDEST = 23, 18
CONTRIB = {"BiasGelu", "FastGelu", "Gelu", "QuickGelu", "ScaledSiLU"}  # of onnxruntime's own operators
KINDS = {"fp32": "tensor(float)", "fp16": "tensor(float16)", "bf16": "tensor(bfloat16)"}
HEAD = f"""\
# Kernels of onnxruntime-gpu {RELEASE}'s CUDA provider for operators at opsets {OLDEST} to {NEWEST}: operator,
# the versions of it that a kernel is registered for, and the floating-point types of its type variables (- for none);
# what takes none at all is left out. "13+" is a kernel for version 13 alone, until a release registers one for the next
# version (KernelRegistry::VerifyKernelDef in core/framework/kernel_registry.cc).
# Read from the released wheel by onnxruntime's own get_all_opkernel_def(), of which docs/OperatorKernels.md is written
# (tools/python/gen_opkernel_doc.py).
"""


def schema_of(name):
    try:
        return onnx.defs.get_schema(name, NEWEST, "")
    except onnx.defs.SchemaError:
        return None


def lines_of(registry):
    """The table, from rows of domain, operator, first and last version, and types by variable."""
    names = {kind: name for name, kind in KINDS.items()}
    table = defaultdict(set)
    for domain, name, (first, last), types in registry:
        kinds = {variable: sorted(names[kind] for kind in texts if kind in names) for variable, texts in types.items()}
        if domain == "com.microsoft" and name in CONTRIB:
            floats = set(kinds)
        elif domain == "" and (schema := schema_of(name)) is not None and first <= NEWEST and last >= _oldest(name):
            constraints = schema.type_constraints
            floats = {each.type_param_str for each in constraints if KINDS["fp32"] in each.allowed_type_strs}
        else:
            continue
        row = {variable: ",".join(kind) or "-" for variable, kind in kinds.items() if kind or variable in floats}
        if set(row.values()) - {"-"}:
            versions = f"{first}+" if last == 2**31 - 1 else f"{first}-{last}"
            table[f"{domain}::{name}" if domain else name, first, versions].add(tuple(sorted(row.items())))
    lines = HEAD.splitlines()
    for (name, _, versions), kernels in sorted(table.items()):
        variables = {variable for kernel in kernels for variable, _ in kernel}
        if len(variables) == 1:  # one line for all its types
            kinds = {kind for kernel in kernels for _, text in kernel for kind in text.split(",")}
            kernels = {((variables.pop(), ",".join(sorted(kinds))),)}
        lines += [" ".join([name, versions, *map("=".join, kernel)]) for kernel in sorted(kernels)]
    return lines


def _oldest(name):
    """The version of an operator at the oldest opset."""
    try:
        return onnx.defs.get_schema(name, OLDEST, "").since_version
    except onnx.defs.SchemaError:
        return OLDEST


def read():
    """By operator: first and last version, and types by variable, of each kernel."""
    kernels = defaultdict(list)
    for line in DATA.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            name, versions, *variables = line.split()
            first, _, last = versions.rstrip("+").partition("-")
            types = {key: set(kinds.split(",")) - {"-"} for key, kinds in (each.split("=") for each in variables)}
            kernels[name].append((int(first), int(last) if last else None, types))
    return dict(kernels)


def registered(kernels, name, version, types):
    """Whether a kernel is registered for a version of an operator whose type variables have these types."""
    return any(
        (version == first or (last is not None and first <= version <= last))
        and all(kind in allowed[variable] for variable, kind in types.items() if variable in allowed)
        for first, last, allowed in kernels.get(name, ())
    )


if __name__ == "__main__":
    import stand_in_cuda

    with tempfile.TemporaryDirectory() as folder:
        DATA.write_text("\n".join(lines_of(stand_in_cuda.registry(Path(folder)))) + "\n", encoding="utf-8")
