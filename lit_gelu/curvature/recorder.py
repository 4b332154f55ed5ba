"""`ActivationRecorder`: watches the inputs of activations in a live model and sums their statistics on the device."""

import sys
from collections.abc import Hashable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from lit_gelu import activations
from lit_gelu.activations import ActivationRegistry
from lit_gelu.curvature.errors import CurvatureArgumentError
from lit_gelu.curvature.rows import count_rows, draw_rows, take_rows
from lit_gelu.curvature.statistics import STATISTICS, SUMS, accumulation_dtype, activation_sums, statistics_from_sums

Site = TypeVar("Site", bound=Hashable)


class ActivationRecorder:
    """Sums the statistics of the inputs of some activations, while it records.

    Its hooks stay on the modules, so that a model compiled later has them, and do nothing until `start`. What they see
    is sampled by whole rows (see `lit_gelu.curvature.rows`) and copied at once, before an in-place activation
    overwrites it; the sums of all sites that share an activation and a shape are computed together. Of activations with
    state of their own, and where all rows are wanted, the sums are computed at once instead. The host reads nothing
    before `statistics`.

    All calls of a module between `start` and `stop` count. A call made while the module's training flag differs from
    what it was at `start` does not: it belongs to an evaluation pass within the recorded one. Copies of the model carry
    no working hook: a deep copy or a pickle of one does nothing.

    Args:
        sites: The modules to watch, by name.
        sample_rows: How many rows of each call to use; ``None`` means all.
        registry: Where the activations' closed forms are looked up; the default registry if not given.

    Raises:
        CurvatureArgumentError: If ``sample_rows`` is not positive.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.GELU())
        >>> with ActivationRecorder({"1": model[1]}) as recorder:
        ...     recorder.start()
        ...     _ = model(torch.zeros(2, 4))
        ...     recorder.stop()
        ...     figures = recorder.statistics()
        >>> torch.allclose(torch.tensor(figures["1"]["mean"]), model[0].bias.mean())
        True
    """

    def __init__(
        self,
        sites: Mapping[str, nn.Module],
        sample_rows: int | None = 128,
        registry: ActivationRegistry | None = None,
    ) -> None:
        if sample_rows is not None and sample_rows < 1:
            raise CurvatureArgumentError(
                f"sample_rows={sample_rows} is not accepted. Give a positive number, or None for all rows."
            )
        self.sites = dict(sites)
        self.sample_rows = sample_rows
        self.active = False
        self._registry = activations.registry if registry is None else registry
        self._modules = list(self.sites.values())
        self._shared = [self._shared_name(module) for module in self._modules]
        self._whole_examples = [_has_tensor_parameters(module) for module in self._modules]
        self._training = [False] * len(self._modules)
        self._pending: list[tuple[int, Tensor]] = []
        self._sums: dict[int, Tensor] = {}
        self._seed = 0
        self._generators: dict[torch.device, torch.Generator] = {}
        self._drawn: dict[tuple[torch.device, int], Tensor] = {}
        self._on_input = self._see  # what the hooks call
        self._handles = [
            module.register_forward_pre_hook(_InputHook(self, number, module), with_kwargs=True)
            for number, module in enumerate(self._modules)
        ]

    def start(self, seed: int = 0) -> None:
        """Forget what was recorded, and record from now on.

        Args:
            seed: Which rows are drawn; the same seed and shapes give the same rows.
        """
        self._pending.clear()
        self._sums.clear()
        self._drawn.clear()
        self._generators.clear()
        self._seed = seed
        self._training = [module.training for module in self._modules]
        if "torch._dynamo" in sys.modules:  # otherwise nothing is compiled, and asking would import it
            self._on_input = torch.compiler.disable(self._see)  # type: ignore[no-untyped-call]
        self.active = True

    def pause(self) -> None:
        """Stop recording for now; what was recorded stays."""
        self.active = False

    def resume(self) -> None:
        """Go on recording after `pause`."""
        self.active = True

    def stop(self) -> None:
        """Stop recording."""
        self.active = False

    def sums(self, device: torch.device | None = None) -> Tensor:
        """Return the sums over all that was recorded; they can be added to those of other ranks.

        Args:
            device: Where they shall be; by default where the inputs were.

        Returns:
            One row a site, in the order of ``sites``, with the columns of `lit_gelu.curvature.SUMS`.
        """
        self._reduce_pending()
        if device is None:
            device = next((row.device for row in self._sums.values()), torch.device("cpu"))
        table = torch.zeros(len(self._modules), len(SUMS), dtype=accumulation_dtype(device), device=device)
        for number, row in self._sums.items():
            table[number] = row
        return table

    def statistics(self) -> dict[str, dict[str, float]]:
        """Return the figures over all that was recorded; one transfer to the host.

        Returns:
            By site and name; see `statistics_from_sums`. A site that was not called has NaN throughout.
        """
        return statistics_by_site(self.sites, self.sums())

    def detach(self) -> None:
        """Take the hooks off and forget what was recorded."""
        self.active = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._pending.clear()

    def _see(self, number: int, x: Tensor) -> None:
        """Take one call into account: its sums at once, or a copy of its rows until they are asked for."""
        if self._training[number] != self._modules[number].training:
            return
        with torch.no_grad():
            rows = self._sample(x.detach(), whole_examples=self._whole_examples[number])
        # Parameters may be trained before the sums are asked for, and copies of all rows would double the memory.
        if rows is None or self._shared[number] is None:
            self._add([(number, x if rows is None else rows)])
        else:
            self._pending.append((number, rows))

    def _sample(self, x: Tensor, *, whole_examples: bool) -> Tensor | None:
        """Return a copy of some rows, or of all if there are not more; ``None`` if all are wanted, however many."""
        if self.sample_rows is None:
            return None
        count = count_rows(x, whole_examples=whole_examples)
        if self.sample_rows >= count:
            return x.clone()
        index = self._drawn.get((x.device, count))
        if index is None:
            index = draw_rows(count, self.sample_rows, self._generator(x.device))
            self._drawn[x.device, count] = index
        return take_rows(x, index, whole_examples=whole_examples)

    def _generator(self, device: torch.device) -> torch.Generator:
        """Return this recording's generator for a device; the global ones belong to the training."""
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]

    def _reduce_pending(self) -> None:
        """Turn the copies into sums, those of all sites with the same activation and shape at once."""
        groups: dict[Any, list[tuple[int, Tensor]]] = {}
        for number, rows in self._pending:
            groups.setdefault((self._shared[number], rows.shape, rows.dtype, rows.device), []).append((number, rows))
        self._pending.clear()
        for members in groups.values():
            self._add(members)

    def _add(self, members: list[tuple[int, Tensor]]) -> None:
        """Add the sums of inputs of one shape, to sites that share an activation."""
        numbers, inputs = zip(*members, strict=True)
        module, device = self._modules[numbers[0]], inputs[0].device
        active, self.active = self.active, False  # an activation without closed form is called to be differentiated
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            if len(members) == 1:
                rows = activation_sums(module, inputs[0], registry=self._registry).unsqueeze(0)
            else:
                rows = activation_sums(module, torch.stack(inputs), stacked=True, registry=self._registry)
        self.active = active
        for number, row in zip(numbers, rows.unbind(), strict=True):
            self._sums[number] = self._sums[number] + row if number in self._sums else row

    def _shared_name(self, module: nn.Module) -> str | None:
        """Return a name that modules computing the same function share; ``None`` if this one has state of its own."""
        spec = self._registry.spec_of(module)
        own_state = next(module.parameters(), None) is not None or next(module.buffers(), None) is not None
        return None if spec.opaque or own_state else str(spec)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.detach()


def statistics_by_site(sites: Iterable[Site], sums: Tensor) -> dict[Site, dict[str, float]]:
    """Turn sums into named figures; one transfer to the host.

    Args:
        sites: Names of the sites, in the order of the rows.
        sums: One row a site, the columns of `lit_gelu.curvature.SUMS`.

    Returns:
        Figures by site and name.
    """
    figures = statistics_from_sums(sums).tolist()
    return {site: dict(zip(STATISTICS, row, strict=True)) for site, row in zip(sites, figures, strict=True)}


class _InputHook:
    """The forward pre-hook of one site; it works on the module it was made for only, and in copies of it not at all."""

    def __init__(self, recorder: ActivationRecorder, number: int, module: nn.Module) -> None:
        self._recorder = recorder
        self._number = number
        self._module = module

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._recorder.active and module is self._module:
            x = args[0] if args else next(iter(kwargs.values()), None)
            if isinstance(x, Tensor):
                self._recorder._on_input(self._number, x)

    def __reduce__(self) -> tuple[type["_IdleHook"], tuple[()]]:
        return _IdleHook, ()


class _IdleHook:
    """What becomes of an `_InputHook` in a deep copy or a pickle of the model."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Do nothing."""


def _has_tensor_parameters(module: nn.Module) -> bool:
    """Return whether a module's parameters may depend on the channel, so that it takes whole examples only."""
    return any(tensor.numel() > 1 for tensor in (*module.parameters(), *module.buffers()))
