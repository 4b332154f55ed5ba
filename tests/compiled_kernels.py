"""Compiles the kernels for GPUs that are not here, and reads their machine code: Triton's own ptxas and nvdisasm."""

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

WARPS = 4
_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_LINE = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")


@dataclass(frozen=True)
class MachineCode:
    """What a kernel became."""

    operations: tuple[str, ...]
    elements: float  # that a thread computes
    registers: int

    @property
    def instructions(self) -> float:
        """Instructions an element."""
        return len(self.operations) / self.elements

    def count(self, *names: str) -> float:
        """Return how many instructions an element have one of these names."""
        return sum(Counter(op.split(".")[0] for op in self.operations)[name] for name in names) / self.elements

    @property
    def accesses(self) -> set[str]:
        """The widths of loads and stores of global memory, in bits; 32 where none is named."""
        found = [op for op in self.operations if op.startswith(("LDG", "STG"))]
        return {width[1] if (width := re.search(r"\.(U?8|U?16|64|128)\b", op)) else "32" for op in found}


def compile_kernel(kernel: Any, capability: int, types: dict[str, str], constants: dict[str, Any]) -> Any:
    """Compile a kernel ahead of time: pointers aligned, counts multiples of 16."""
    names = kernel.arg_names
    aligned = [name for name, kind in types.items() if kind.startswith(("*", "i"))]
    signature = {name: types.get(name, "constexpr") for name in names}
    fixed = {(names.index(name),): value for name, value in constants.items()}
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(kernel, signature, fixed, attributes)
    options = {"num_warps": WARPS, "enable_fp_fusion": True}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def machine_code(compiled: Any, elements: int) -> MachineCode:
    """Read the machine code of a kernel whose program computes so many elements."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(compiled.asm["cubin"])
        text = subprocess.run([_TOOLS / "nvdisasm", "-c", file], capture_output=True, text=True, check=True).stdout
    operations = [found[1] for line in text.splitlines() if (found := _LINE.match(line))]
    operations = [operation for operation in operations if operation != "NOP"]
    while operations and operations[-1] == "BRA":  # the endless loop behind the end
        operations.pop()
    return MachineCode(tuple(operations), elements / (32 * WARPS), 0)
