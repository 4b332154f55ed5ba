"""The module in PyTorch: in the file's dtype, in float64, and as trained."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.export.copying import evaluation_copy, output_names, require_faithful
from lit_gelu.export.forms import approximate_
from lit_gelu.export.inputs import Call, FlatModule, named_outputs, probabilities_first
from lit_gelu.export.parity.criterion import dtype_name
from lit_gelu.export.parity.execution import as_array
from lit_gelu.export.parity.plain_loops import PlainLoops
from lit_gelu.export.parity.rounded import RoundedTo
from lit_gelu.export.parity.ties import Candidates, IndexTracker
from lit_gelu.export.runtime.module_call import Float64Throughout

VARIATIONS = 8


@dataclass(frozen=True)
class Outputs:
    """PyTorch's outputs for one batch, one array an output."""

    own: list[np.ndarray] | None  # in the file's dtype
    exact: list[np.ndarray] | None  # in float64
    trained: list[np.ndarray] | None  # in float32 with the module's own form of GELU


@dataclass(frozen=True)
class OutputSignature:
    """What the module says of one of its outputs."""

    name: str  # its name in the file
    dtype: str  # in torch's name
    shape: tuple[int, ...]  # on the sample


class References:
    """Copies of the module in the file's dtype and in float64 with the file's form of GELU, and as trained."""

    def __init__(
        self,
        model: nn.Module,
        call: Call,
        approximate: str,
        registry: ActivationRegistry,
        preprocessing: nn.Module | None = None,
        dtype: torch.dtype = torch.float32,
        *,
        softmax: bool = False,
    ) -> None:
        self.dtype = dtype
        self._softmax = softmax
        self._call = call
        self._preprocessing = (
            {}
            if preprocessing is None
            else {dtype: evaluation_copy(preprocessing, dtype) for dtype in (torch.float32, torch.float64)}
        )
        self._form = (approximate, registry)
        trained = evaluation_copy(model)
        flat = FlatModule(trained, call, self._preprocessing.get(torch.float32), softmax=softmax)
        self.notes = require_faithful(flat, model, call.tensors)
        self.signatures = _signatures(flat)
        self._trained = None if approximate == "as_trained" else trained
        self.float32 = self._copy(model, torch.float32)
        self._modes: dict[nn.Module, Callable[[], AbstractContextManager[Any]]] = {}
        self.own = self.float32 if dtype == torch.float32 else self._tried(model, dtype)
        self.exact = self._tried(model, torch.float64)
        self.own_dtype, self.exact_dtype = dtype, torch.float64
        if self.own is None:
            self._let_float32_stand_in(model)

    def _copy(self, model: nn.Module, dtype: torch.dtype) -> nn.Module:
        """Return a copy with the file's form of GELU."""
        flat = FlatModule(evaluation_copy(model, dtype), self._call, self._preprocessing.get(dtype))
        approximate_(flat, *self._form, dtype)
        return flat.model

    def _tried(self, model: nn.Module, dtype: torch.dtype) -> nn.Module | None:
        """Return a copy that can run in a dtype, in a mode if its ``forward`` needs one; or note why there is none."""
        reason, name = "", dtype_name(dtype)
        for mode in (nullcontext, _helpful_mode(dtype)):
            known = dict(self._modes)
            try:
                twin = self._copy(model, dtype)
                self._modes[twin] = mode
                self.run(twin, self._call.tensors, dtype)
            except Exception as error:  # noqa: BLE001 - forward is the user's: whatever it raises is reported
                reason, self._modes = reason or f"forward fails in {name} ({error}).", known
                continue
            if reason and dtype != torch.float64:
                self.notes.append(f"PyTorch's own {name} is that of autocast: {reason}")
            return twin
        self.notes.append(f"no {name} reference: {reason}")
        return None

    def _let_float32_stand_in(self, model: nn.Module) -> None:
        """Let rounded float32 be the file's 16 bits, and float32 float64 if need be: a proof is of the whole net."""
        name = dtype_name(self.dtype)
        self.own, self.own_dtype = self._copy(model, torch.float32), torch.float32
        self._modes[self.own] = partial(RoundedTo, self.dtype)
        for tensor in (*self.own.parameters(), *self.own.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(tensor.to(self.dtype))
        if self.exact is None:
            self.exact, self.exact_dtype = self.float32, torch.float32
            self.notes.append(f"float32 stands in for float64, which is as good for {name}.")
        self.notes.append(f"PyTorch's own {name} is float32 with every result rounded to it.")

    def outputs(self, batch: Sequence[Tensor]) -> Outputs:
        """Run all references."""
        modules = ((self.own, self.own_dtype), (self.exact, self.exact_dtype), (self._trained, torch.float32))
        return Outputs(*(None if module is None else self.run(module, batch, dtype) for module, dtype in modules))

    @torch.no_grad()
    def candidates(self, batch: Sequence[Tensor]) -> list[tuple[Candidates | None, Candidates | None]]:
        """Return what each output is an index into, if it is one: in float64, and in the file's dtype."""
        if self.exact is None:
            return []
        found = []
        for module, dtype in ((self.exact, self.exact_dtype), (self.own, self.own_dtype)):
            with IndexTracker() as tracker:
                outputs = [] if module is None else named_outputs(self._called(module, batch, dtype))
            found.append([tracker.of(tensor) for _, tensor in outputs])
        exact, own = found
        return list(zip(exact, own or [None] * len(exact), strict=True))

    def trouble(self, batch: Sequence[Tensor]) -> str:
        """Say what is wrong with an input: the module fails on it, or its outputs are not all finite."""
        try:
            outputs = self.run(self.float32, batch, torch.float32)
        except Exception as error:  # noqa: BLE001 - forward is the user's: whatever it raises is reported
            return failure(error)
        return "" if all(np.isfinite(y).all() for y in outputs) else "outputs are not finite"

    @torch.no_grad()
    def varied(self, batch: Sequence[Tensor]) -> Iterator[tuple[list[np.ndarray], list[np.ndarray]]]:
        """Yield outputs with weights and inputs moved by at most a unit in the last place, and the exact ones."""
        # That is what another order of additions does to a net: by backward analysis, each layer then computes what it
        # would compute exactly of numbers that are off in their last places. Where large parts of a sum cancel it is
        # more, and how much depends on the processor's library: so the last outputs are those of plain loops. In 16 bit
        # nothing is yielded: there the rounding of what is stored decides, and all implementations share it.
        if self.dtype != torch.float32 or self.own is None or self.exact is None:
            return
        exact = self.run(self.exact, batch, torch.float64)
        generator = torch.Generator().manual_seed(0)
        values = [t for t in (*self.own.parameters(), *self.own.buffers()) if t.is_floating_point()]
        before = [t.clone() for t in values]
        try:
            for _ in range(VARIATIONS):
                for tensor, kept in zip(values, before, strict=True):
                    tensor.copy_(_moved(kept, generator))
                inputs = [_moved(t, generator) if t.is_floating_point() else t for t in batch]
                yield self.run(self.own, inputs, self.dtype), exact
        finally:
            for tensor, kept in zip(values, before, strict=True):
                tensor.copy_(kept)
        with PlainLoops():
            added_one_by_one = self.run(self.own, batch, self.dtype)
        yield added_one_by_one, exact

    @torch.no_grad()
    def run(self, module: nn.Module, batch: Sequence[Tensor], dtype: torch.dtype) -> list[np.ndarray]:
        """Run one module on one batch, in one dtype from the preprocessing on (which is never in 16 bit)."""
        output = self._called(module, batch, dtype)
        return [
            as_array(tensor) for _, tensor in named_outputs(probabilities_first(output) if self._softmax else output)
        ]

    def _called(self, module: nn.Module, batch: Sequence[Tensor], dtype: torch.dtype) -> Any:
        """Return what a copy's ``forward`` returns for a batch."""
        tensors = [t.clone() for t in batch]  # forward may overwrite them, and others are given the same batch
        if self._preprocessing:
            tensors[0] = self._preprocessing.get(dtype, self._preprocessing[torch.float32])(tensors[0])
        args, kwargs = self._call.arguments([t.to(dtype) if t.is_floating_point() else t for t in tensors])
        with self._modes.get(module, nullcontext)():
            return module(*args, **kwargs)


def _helpful_mode(dtype: torch.dtype) -> Callable[[], AbstractContextManager[Any]]:
    """Return a mode for a ``forward`` that mixes dtypes, in which modules of a dtype can often run all the same."""
    return Float64Throughout if dtype == torch.float64 else partial(torch.autocast, "cpu", dtype, cache_enabled=False)


def failure(error: Exception) -> str:
    """Say that the module does not take an input."""
    return f"forward fails ({error})"


@torch.no_grad()
def _signatures(flat: FlatModule) -> list[OutputSignature]:
    """Return names, dtypes and shapes of a module's outputs on its sample."""
    with torch.random.fork_rng(devices=[]):
        outputs = named_outputs(flat.run([t.clone() for t in flat.call.tensors]))
    names = output_names([name for name, _ in outputs], flat.call)
    pairs = zip(names, outputs, strict=True)
    return [OutputSignature(name, dtype_name(tensor.dtype), tuple(tensor.shape)) for name, (_, tensor) in pairs]


def _moved(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Return a float32 tensor whose entries are moved by -1, 0 or 1 unit in the last place."""
    share = torch.rand(tensor.shape, generator=generator, dtype=torch.float64) * 2 - 1
    return (tensor.double() * (1 + torch.finfo(torch.float32).eps * share)).float()
