"""Compiles the kernels for GPUs that are not here, and reads their machine code: Triton's own ptxas and its tools."""

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lit_gelu.activations.gpu import templates

#: Compute capabilities, as Triton names them: Ampere, Hopper and both kinds of Blackwell.
GENERATIONS = (80, 90, 100, 120)
WARPS = 4
BLOCK = 1024
_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_LINE = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")
_LABEL = re.compile(r"(\.L\w+):")
_JUMP = re.compile(r"\bBRA(?:\.\w+)*\s+(?:!?U?P\w+,\s+)?`\((\.L\w+)\)")
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")


@dataclass(frozen=True)
class MachineCode:
    """What a kernel became."""

    operations: tuple[str, ...]
    loop: int  # how many of them are in a loop
    elements: float  # that a thread computes, in one round of the loop if there is one
    registers: int
    stack: int  # bytes of a thread

    @property
    def instructions(self) -> float:
        """Instructions an element, of the loop if there is one: what is before it is done once for many elements."""
        return (self.loop or len(self.operations)) / self.elements

    def count(self, *names: str) -> float:
        """Return how many instructions an element have one of these names."""
        return sum(Counter(op.split(".")[0] for op in self.operations)[name] for name in names) / self.elements

    @property
    def accesses(self) -> set[str]:
        """The widths of loads and stores of global memory, in bits; 32 where none is named."""
        found = [op for op in self.operations if op.startswith(("LDG", "STG"))]
        return {width[1] if (width := re.search(r"\.(U?8|U?16|64|128)\b", op)) else "32" for op in found}

    @property
    def beside_registers(self) -> float:
        """Instructions an element that spill registers or return from functions, and bytes of stack."""
        return self.count("LDL", "STL", "RET") + self.stack  # a CALL without a RET is a way to leave a loop

    def summary(self) -> dict[str, Any]:
        """Return its figures."""
        return {
            "instructions": self.instructions,
            "mufu": self.count("MUFU"),
            "registers": self.registers,
            "beside_registers": self.beside_registers,
            "widths": sorted(self.accesses, key=lambda width: int(width.strip("U"))),
        }


@dataclass(frozen=True)
class TemplateCase:
    """A template with a function and a dtype, as the package launches it.

    Attributes:
        template: Name of a kernel in `templates`.
        function: Name of a function in `device`; empty where the template has its own.
        dtype: Of the tensors, as Triton writes it.
        types: Of the other arguments.
        tensors: Names of pointers to the tensors.
        constants: What is compiled in.
        elements: That a program computes.
        most: Instructions an element, at most.
        widths: Of accesses to memory, in bits.
    """

    template: str
    function: str
    dtype: str
    tensors: tuple[str, ...]
    types: dict[str, str]
    constants: dict[str, Any]
    elements: int
    most: float
    widths: frozenset[str] = frozenset({"128"})

    def __str__(self) -> str:
        """Return a name."""
        return "-".join(filter(None, (self.template, self.function, self.dtype)))

    def compiled(self, generation: int) -> MachineCode:
        """Compile it."""
        pointers = {f"{name}_ptr": f"*{self.dtype}" for name in self.tensors}
        kernel = getattr(templates, self.template)
        return machine_code(compile_kernel(kernel, generation, pointers | self.types, self.constants), self.elements)


_UNARY = {"n": "i32", "p0": "fp32", "p1": "fp32"}
_LEARNED = {"p0_ptr": "*fp32", "p1_ptr": "*fp32", "channels": "i32"}
#: Most instructions an element: a copy at full speed leaves time for 31 forward and 47 backward on an H200.
_LIMITS = {
    "gelu": (26, 36),
    "gelu_tanh": (26, 36),
    "swish": (26, 36),
    "mish": (26, 36),
    "elu": (20, 20),
    "hard_swish": (20, 20),
    "gaussian_gelu": (26, 36),
}
_PARAMETERS = frozenset({"128", "32"})  # those of a channel are read as single numbers
_SEED = frozenset({"128", "64"})
_BITS = frozenset({"128", "U8"})  # eight elements share a byte
_FIT = (
    "scale",
    "factor",
    "lowest",
    "octaves",
    "least",
    "end",
    *(f"{s}{i}" for s, n in (("r", 8), ("l", 6)) for i in range(n)),
)


def template_cases(dtype: str) -> Iterator[TemplateCase]:
    """Yield every template with every function that it is launched for."""
    yield from _unary(dtype)
    for function in ("gaussian_gelu", "swish"):
        yield from _learned(function, dtype)
    for function in ("gelu", "gelu_tanh", "swish", "relu", "sigmoid"):
        gate = int(function == "sigmoid")  # torch's GLU has it in the second half
        sizes, constants = {"n": "i32", "p0": "fp32"}, {"ACT": function, "GATE": gate, "BLOCK": BLOCK}
        yield TemplateCase("gated_forward", function, dtype, ("x", "y"), sizes, constants, BLOCK, 26)
        yield TemplateCase("gated_backward", function, dtype, ("g", "x", "d"), sizes, constants, BLOCK, 36)
    yield from _from_output(dtype)
    sizes, block = {"n": "i32"}, {"BLOCK": BLOCK}
    seeded = sizes | {"seed_ptr": "*i64"}
    yield TemplateCase("zero_identity_forward", "", dtype, ("x", "y"), seeded, block, BLOCK, 28, _SEED)
    yield TemplateCase("zero_identity_backward", "", dtype, ("g", "y", "d"), sizes, block, BLOCK, 28)


def _unary(dtype: str) -> Iterator[TemplateCase]:
    for function, (forward, backward) in _LIMITS.items():
        constants = {"ACT": function, "BLOCK": BLOCK}
        yield TemplateCase("unary_forward", function, dtype, ("x", "y"), _UNARY, constants, BLOCK, forward)
        yield TemplateCase("unary_backward", function, dtype, ("g", "x", "d"), _UNARY, constants, BLOCK, backward)


def _from_output(dtype: str) -> Iterator[TemplateCase]:
    sizes = {"bits_ptr": "*u8", "n": "i32"}
    for function in ("gelu", "mish"):
        types, constants = sizes | {"p0": "fp32", "lowest": "fp32"}, {"ACT": function, "BLOCK": BLOCK}
        yield TemplateCase("valley_forward", function, dtype, ("x", "y"), types, constants, BLOCK, 26, _BITS)
    types, block = sizes | dict.fromkeys(_FIT, "fp32"), {"BLOCK": BLOCK}
    yield TemplateCase("valley_backward", "", dtype, ("g", "y", "d"), types, block, BLOCK, 50, _BITS)


def _learned(function: str, dtype: str) -> Iterator[TemplateCase]:
    there, back = ("x", "y"), ("g", "x", "d")
    constants, sums = {"ACT": function, "BLOCK": BLOCK}, {"sums_ptr": "*fp32"}
    sizes = {"inner": "i32"} | _LEARNED
    yield TemplateCase("learned_forward", function, dtype, there, sizes, constants, BLOCK, 26, _PARAMETERS)
    four = constants | {"BLOCKS": 4}
    yield TemplateCase("learned_backward", function, dtype, back, sizes | sums, four, 4 * BLOCK, 48, _PARAMETERS)
    sizes = {"n": "i64", "rows": "i32"} | _LEARNED
    yield TemplateCase("learned_forward_last", function, dtype, there, sizes, constants, BLOCK, 26)
    yield TemplateCase("learned_backward_last", function, dtype, back, sizes | sums, constants, BLOCK, 48)


def compile_kernel(
    kernel: Any,
    capability: int,
    types: dict[str, str],
    constants: dict[str, Any],
    warps: int = WARPS,
    stages: int | None = None,
) -> Any:
    """Compile a kernel ahead of time: pointers aligned, counts multiples of 16."""
    names = kernel.arg_names
    aligned = [name for name, kind in types.items() if kind.startswith(("*", "i"))]
    signature = {name: types.get(name, "constexpr") for name in names}
    fixed = {(names.index(name),): value for name, value in constants.items()}
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(kernel, signature, fixed, attributes)
    options = {"num_warps": warps, "enable_fp_fusion": True, **({} if stages is None else {"num_stages": stages})}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def machine_code(compiled: Any, elements: int, warps: int = WARPS) -> MachineCode:
    """Read the machine code of a kernel whose program computes so many elements."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(compiled.asm["cubin"])
        text = _said("nvdisasm", "-c", file)
        usage = _USAGE.search(_said("cuobjdump", "--dump-resource-usage", file))
    operations, loop = _operations(text)
    return MachineCode(tuple(operations), loop, elements / (32 * warps), int(usage[1]), int(usage[2]))


def _operations(text: str) -> tuple[list[str], int]:
    """Return the instructions of a listing, without the endless loop behind its end, and how many a loop has."""
    found: list[str] = []
    labels: dict[str, int] = {}
    loop = 0
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(found)
        if (operation := _LINE.match(line)) and operation[1] != "NOP":
            begin = labels.get(jump[1], len(found)) if (jump := _JUMP.search(line)) else len(found)
            if jump and begin == len(found) and jump[1] in labels:
                break
            found.append(operation[1])
            loop = max(loop, len(found) - begin if jump and begin < len(found) - 1 else 0)
    return found, loop


def _said(tool: str, *arguments: Any) -> str:
    return subprocess.run([_TOOLS / tool, *arguments], capture_output=True, text=True, check=True).stdout
