"""`ActivationRecorder`: watches the inputs of activations in a live model and sums their statistics on the device."""

from collections.abc import Hashable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from lit_gelu import activations
from lit_gelu.activations import ActivationRegistry
from lit_gelu.curvature.activation.histograms import HistogramBins
from lit_gelu.curvature.activation.rows import channel_dim
from lit_gelu.curvature.activation.statistics import (
    STATISTICS,
    SUMS,
    Activity,
    accumulation_dtype,
    measure,
    statistics_from_sums,
)
from lit_gelu.curvature.activation.watching import InputHook, Sampler, SampleRows, WatchedCall
from lit_gelu.curvature.errors import CurvatureArgumentError

Site = TypeVar("Site", bound=Hashable)


class ActivationRecorder:
    """Sums the statistics of the inputs of some activations, while it records.

    Its hooks stay on the modules, so that a model compiled later has them, and do nothing until `start`. What they see
    is sampled by whole rows (see `lit_gelu.curvature.activation.rows`) and copied at once, before an in-place
    activation overwrites it; the sums of all sites that share an activation and a shape are computed together, when
    `sums` is called. Of all rows, where these are wanted, the sums are computed at once instead (in compiled code, they
    are copied). The host reads nothing before `statistics`.

    All calls of a module between `start` and `stop` count. A call made while the activation's training flag differs
    from what it was at `start` does not: it belongs to an evaluation pass within the recorded one. Copies of the model
    carry no working hook: a deep copy or a pickle of one does nothing.

    Args:
        sites: What to watch, by name: activation modules, or calls of them.
        sample_rows: How many rows of each call to use; ``"auto"`` means as many as hold 8,192 elements (8 at least),
            ``None`` all.
        registry: Where the activations' closed forms are looked up; the default registry if not given.
        histogram: The bins of histograms, if these are wanted too.

    Raises:
        CurvatureArgumentError: If ``sample_rows`` is not positive.

    Attributes:
        seconds: Wall-clock seconds that the hooks took since `start`, where code is not compiled.
        reference: What the moments of each site are taken about and the scale of its windows about kinks: ``[sites,
            2]``, a mean and a deviation from elsewhere, such as those of an earlier recording. NaN, and by default, is
            0 and the deviation of each input by itself.

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
        sites: Mapping[str, nn.Module | WatchedCall],
        sample_rows: SampleRows = "auto",
        registry: ActivationRegistry | None = None,
        histogram: HistogramBins | None = None,
    ) -> None:
        if sample_rows not in {"auto", None} and (not isinstance(sample_rows, int) or sample_rows < 1):
            raise CurvatureArgumentError(
                f"{sample_rows=} is not accepted. Give a positive number, 'auto', or None for all rows."
            )
        self.calls = {
            name: site if isinstance(site, WatchedCall) else WatchedCall(site, site) for name, site in sites.items()
        }
        self.sites = {name: call.activation for name, call in self.calls.items()}
        self.sampler = Sampler(sample_rows)
        self.histogram = histogram
        self.active = False
        self.seconds = 0.0
        self.reference: Tensor | None = None
        self._registry = activations.registry if registry is None else registry
        self._modules = list(self.sites.values())
        self._shared = [self._shared_name(module) for module in self._modules]
        self._sums: list[tuple[list[int], Tensor]] = []
        self._alive: dict[int, Tensor | None] = {}
        self._counts: list[tuple[list[int], Tensor]] = []
        self._index: dict[tuple[torch.device, tuple[int, ...]], Tensor] = {}
        self._hooks = [
            InputHook(self, number, call, whole_examples=_has_tensor_parameters(call.activation))
            for number, call in enumerate(self.calls.values())
        ]
        self._handles = [
            call.hooked.register_forward_pre_hook(hook, with_kwargs=True)
            for hook, call in zip(self._hooks, self.calls.values(), strict=True)
        ]

    @property
    def sample_rows(self) -> SampleRows:
        """How many rows of each call are used."""
        return self.sampler.sample_rows

    def start(self, seed: int = 0, device: torch.device | None = None) -> None:
        """Forget what was recorded, and record from now on.

        Args:
            seed: Which rows are drawn; the same seed and shapes give the same rows.
            device: Where the inputs will be; compiled code cannot find out.
        """
        self._sums.clear()
        self._alive.clear()
        self._counts.clear()
        self.seconds = 0.0
        for hook in self._hooks:
            hook.start()
        if self.sample_rows is not None:
            self.sampler.start(seed, device or torch.device("cpu"))
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

    def moments(self, device: torch.device | None = None) -> Tensor:
        """Return count, sum and sum of squares of the rows that wait to be summed; see `reference`.

        Args:
            device: As in `sums`.

        Returns:
            One row a site; finite elements only.
        """
        device = device or self._device()
        table = torch.zeros(len(self._hooks), 3, dtype=accumulation_dtype(device), device=device)
        for numbers, rows in self._groups():
            x = rows.flatten(1).to(table)
            finite = x.abs() < torch.inf
            x = torch.where(finite, x, 0.0)
            found = torch.stack([finite.sum(1).to(x), x.sum(1), x.square().sum(1)], dim=1)
            table.index_add_(0, self._numbers(numbers, device), found)
        return table

    def sums(self, device: torch.device | None = None) -> Tensor:
        """Return the sums over all that was recorded; they can be added to those of other ranks.

        Args:
            device: Where they shall be; by default where the inputs were.

        Returns:
            One row a site, in the order of ``sites``, with the columns of `lit_gelu.curvature.SUMS`.
        """
        device = device or self._device()
        self._reduce(self._hooks)
        table = torch.zeros(len(self._hooks), len(SUMS), dtype=accumulation_dtype(device), device=device)
        for numbers, rows in self._sums:
            table.index_add_(0, self._numbers(numbers, device), rows.to(table))
        return table

    def reduce_those_with_parameters(self) -> None:
        """Sum what was recorded of activations with parameters of their own, before these are trained."""
        self._reduce([hook for hook in self._hooks if self._shared[hook.number] is None])

    def alive_channels(self) -> dict[int, Tensor]:
        """Return which channels of each site the activation passes on: |f'| >= 0.01 at any element that was recorded.

        Returns:
            By the site's number, a mask over channels; only of those called with channels, always equally many. To be
            asked after `sums`.
        """
        return {number: mask for number, mask in self._alive.items() if mask is not None}

    def histograms(self, device: torch.device | None = None) -> Tensor:
        """Return the histograms over all that was recorded; to be asked after `sums`.

        Args:
            device: As in `sums`.

        Returns:
            One row a site, as `lit_gelu.curvature.HistogramBins.count`; no columns if none were asked for.
        """
        device = device or self._device()
        columns = 0 if self.histogram is None else self.histogram.bins + 2
        table = torch.zeros(len(self._hooks), columns, dtype=accumulation_dtype(device), device=device)
        for numbers, rows in self._counts:
            table.index_add_(0, self._numbers(numbers, device), rows.to(table))
        return table

    def statistics(self) -> dict[str, dict[str, float]]:
        """Return the figures over all that was recorded; one transfer to the host.

        Returns:
            By site and name; see `statistics_from_sums`. A site that was not called has NaN throughout.
        """
        return statistics_by_site(self.sites, self.sums(), self._pivot(self._device()))

    def detach(self) -> None:
        """Take the hooks off and forget what was recorded."""
        self.active = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for hook in self._hooks:
            hook.taken.clear()

    def see_at_once(self, number: int, x: Tensor) -> None:
        """Sum one input without keeping it.

        Args:
            number: The site's number.
            x: The input.
        """
        self._add([number], x.unsqueeze(0))

    def _device(self) -> torch.device:
        taken = (rows.device for hook in self._hooks for rows in hook.taken)
        return next(taken, self._sums[0][1].device if self._sums else torch.device("cpu"))

    def _pivot(self, device: torch.device) -> Tensor | float:
        """Return what is subtracted from each site's inputs before powers are taken."""
        return 0.0 if self.reference is None else self.reference[:, 0].nan_to_num(nan=0.0).to(device)

    def _groups(self, hooks: "list[InputHook] | None" = None) -> Iterable[tuple[list[int], Tensor]]:
        """Yield what was taken, that of all sites with the same activation, shape, type and device at once."""
        groups: dict[Any, list[tuple[int, Tensor]]] = {}
        for hook in self._hooks if hooks is None else hooks:
            for rows in hook.taken:
                shared = self._shared[hook.number]
                own = object() if shared is None else shared
                groups.setdefault((own, rows.shape, rows.dtype, rows.device), []).append((hook.number, rows))
        for members in groups.values():
            inputs = [rows for _, rows in members]
            yield [number for number, _ in members], torch.stack(inputs) if len(inputs) > 1 else inputs[0].unsqueeze(0)

    def _reduce(self, hooks: "list[InputHook]") -> None:
        """Turn what was taken into sums."""
        for numbers, rows in self._groups(hooks):
            self._add(numbers, rows)
        for hook in hooks:
            hook.taken.clear()

    def _add(self, numbers: list[int], rows: Tensor) -> None:
        """Add the sums of inputs ``[len(numbers), ...]``, to sites that share an activation."""
        first, device = numbers[0], rows.device
        dim = channel_dim(rows[0], whole_examples=self._hooks[first].whole_examples)
        pivot, scale = self._pivot(device), None
        if self.reference is not None and isinstance(pivot, Tensor):
            index = self._numbers(numbers, device)
            pivot, scale = pivot[index], self.reference[:, 1].to(device)[index]
        active, self.active = self.active, False  # an activation without closed form is called to be differentiated
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            found: Activity = measure(
                self._modules[first],
                rows,
                self._registry,
                pivot=pivot,
                scale=scale,
                channel_dim=None if dim is None else dim + 1,
            )
            if self.histogram is not None:
                self._counts.append((numbers, self.histogram.count(rows)))
        self.active = active
        self._sums.append((numbers, found.sums))
        for position, number in enumerate(numbers):
            self._note_alive(number, None if found.alive is None else found.alive[position])

    def _note_alive(self, number: int, mask: Tensor | None) -> None:
        known = self._alive.get(number, mask)
        same = mask is not None and known is not None and known.shape == mask.shape
        self._alive[number] = known | mask if same and known is not None and mask is not None else None

    def _numbers(self, numbers: list[int], device: torch.device) -> Tensor:
        """Return site numbers as a tensor on a device, where it is kept: making one there would wait for the device."""
        key = (device, tuple(numbers))
        if key not in self._index:
            self._index[key] = torch.tensor(numbers, device=device)
        return self._index[key]

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


def statistics_by_site(
    sites: Iterable[Site], sums: Tensor, pivot: Tensor | float = 0.0
) -> dict[Site, dict[str, float]]:
    """Turn sums into named figures; one transfer to the host.

    Args:
        sites: Names of the sites, in the order of the rows.
        sums: One row a site, the columns of `lit_gelu.curvature.SUMS`.
        pivot: What was subtracted before powers were taken, one number or one for each site.

    Returns:
        Figures by site and name.
    """
    figures = statistics_from_sums(sums, pivot).tolist()
    return {site: dict(zip(STATISTICS, row, strict=True)) for site, row in zip(sites, figures, strict=True)}


def _has_tensor_parameters(module: nn.Module) -> bool:
    """Return whether a module's parameters may depend on the channel, so that it takes whole examples only."""
    return any(tensor.numel() > 1 for tensor in (*module.parameters(), *module.buffers()))
