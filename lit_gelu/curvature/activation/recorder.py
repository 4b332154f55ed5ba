"""`ActivationRecorder`: watches the inputs of activations in a live model and sums their statistics on the device."""

import time
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Self, TypeVar

import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.curvature.activation.histograms import HistogramBins
from lit_gelu.curvature.activation.recording import Recording
from lit_gelu.curvature.activation.rows import SampleRows
from lit_gelu.curvature.activation.site_evaluators import SiteEvaluators
from lit_gelu.curvature.activation.statistics import STATISTICS, statistics_from_sums
from lit_gelu.curvature.activation.watching import ELEMENTS, InputHook, Sampler, Taken, WatchedCall
from lit_gelu.curvature.errors import CurvatureArgumentError

Site = TypeVar("Site", bound=Hashable)


class ActivationRecorder:
    """Sums the statistics of the inputs of some activations, while it records.

    Its hooks stay on the modules, so that a model compiled later has them, and do nothing until `start`. What they see
    is sampled by whole rows (see `lit_gelu.curvature.activation.rows`) and copied at once, before an in-place
    activation overwrites it; on a CPU, inputs that autograd keeps for the backward pass are held until `pause`, `stop`
    or `sums` instead, 64 MiB at most, and copied then, which is cheaper. The sums of all sites that share an activation
    and a shape are computed together, when `sums` is called; `take` hands the rows out, to be summed later. Of all
    rows, where these are wanted, the sums are computed at once (in compiled code, they are copied). The host reads
    nothing before `statistics`.

    All calls of a module between `start` and `stop` count. A call made while the activation's training flag differs
    from what it was at `start` does not: it belongs to an evaluation pass within the recorded one. Copies of the model
    carry no working hook: a deep copy or a pickle of one does nothing.

    Args:
        sites: What to watch, by name: activation modules, or calls of them.
        sample_rows: How many rows of each call to use; ``"auto"`` means as many as hold 8,192 elements (8 at least),
            ``"sparse"`` 4,096, ``None`` all.
        registry: Where the activations' closed forms are looked up; the default registry if not given.
        histogram: The bins of histograms, if these are wanted too.

    Raises:
        CurvatureArgumentError: If ``sample_rows`` is not positive.

    Attributes:
        seconds: Wall-clock seconds that the hooks took since `start`, where code is not compiled.
        held_bytes: The size of the inputs that are held.
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
        if sample_rows not in {*ELEMENTS, None} and (not isinstance(sample_rows, int) or sample_rows < 1):
            raise CurvatureArgumentError(
                f"{sample_rows=} is not accepted. Give a positive number, 'auto', 'sparse', or None for all rows."
            )
        self.calls = {
            name: site if isinstance(site, WatchedCall) else WatchedCall(site, site) for name, site in sites.items()
        }
        self.sites = {name: call.activation for name, call in self.calls.items()}
        self.sampler = Sampler(sample_rows)
        self.active = False
        self.seconds = 0.0
        self.held_bytes = 0
        registry = registry_or_default(registry)
        self._evaluators = SiteEvaluators(list(self.sites.values()), registry, histogram)
        self._recording = Recording(self._evaluators)
        self._hooks = [
            InputHook(self, number, call, whole_examples=self._evaluators.whole_examples[number])
            for number, call in enumerate(self.calls.values())
        ]
        self._handles = [
            call.hooked.register_forward_pre_hook(hook, with_kwargs=True)
            for hook, call in zip(self._hooks, self.calls.values(), strict=True)
        ]

    @property
    def reference(self) -> Tensor | None:
        """What moments are taken about, and the scale of the windows about kinks."""
        return self._evaluators.reference

    @reference.setter
    def reference(self, value: Tensor | None) -> None:
        self._evaluators.reference = value

    @property
    def histogram(self) -> HistogramBins | None:
        """The bins of the histograms, if these are wanted."""
        return self._evaluators.histogram

    @property
    def sample_rows(self) -> SampleRows:
        """How many rows of each call are used."""
        return self.sampler.sample_rows

    @property
    def rows_may_wait(self) -> bool:
        """Whether what is recorded may be summed at any time: no activation changes, and only some rows are kept."""
        return self.sample_rows is not None and not any(self._evaluators.have_state)

    def start(self, seed: int = 0, device: torch.device | None = None) -> None:
        """Forget what was recorded, and record from now on.

        Args:
            seed: Which rows are drawn; the same seed and shapes give the same rows.
            device: Where the inputs will be; compiled code cannot find out.
        """
        self._recording = Recording(self._evaluators)
        self.held_bytes = 0
        self.seconds = 0.0
        for hook in self._hooks:
            hook.start()
        if self.sample_rows is not None:
            self.sampler.start(seed, device or torch.device("cpu"))
        self.active = True

    def pause(self) -> None:
        """Stop recording for now; what was recorded stays. To be called before a backward pass."""
        self._sample_held()
        self.active = False

    def resume(self) -> None:
        """Go on recording after `pause`."""
        self.active = True

    def stop(self) -> None:
        """Stop recording."""
        self._sample_held()
        self.active = False

    def take(self) -> Recording:
        """Hand out what was recorded, to be summed later, and forget it.

        Returns:
            The recording. It is right as long as the activations compute what they do now; see `rows_may_wait`.
        """
        taken, self._recording = self._gathered(), Recording(self._evaluators)
        return taken

    def sums(self, device: torch.device | None = None) -> Tensor:
        """Return the sums over all that was recorded; they can be added to those of other ranks.

        Args:
            device: Where they shall be; by default where the inputs were.

        Returns:
            One row a site, in the order of ``sites``, with the columns of `lit_gelu.curvature.SUMS`.
        """
        with self.inactive():
            return self._gathered().sums(device)

    def reduce_those_with_parameters(self) -> None:
        """Sum what was recorded of activations with parameters of their own, before these are trained."""
        self._sample_held()
        have_state = self._evaluators.have_state
        with self.inactive():
            self._recording.add(self._emptied([hook for hook in self._hooks if have_state[hook.number]]))

    def statistics(self) -> dict[str, dict[str, float]]:
        """Return the figures over all that was recorded; one transfer to the host.

        Returns:
            By site and name; see `statistics_from_sums`. A site that was not called has NaN throughout.
        """
        sums = self.sums()
        return statistics_by_site(self.sites, sums, self._evaluators.pivot(sums.device))

    def detach(self) -> None:
        """Take the hooks off and forget what was recorded."""
        self.active = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for hook in self._hooks:
            hook.clear()
        self._recording = Recording(self._evaluators)

    def see_at_once(self, taken: Taken) -> None:
        """Sum one input without keeping it.

        Args:
            taken: The input.
        """
        with self.inactive():
            self._recording.add([taken])

    @contextmanager
    def inactive(self) -> Iterator[None]:
        """Do not record for a while: an activation without closed form is called to be differentiated."""
        active, self.active = self.active, False
        try:
            yield
        finally:
            self.active = active

    def _sample_held(self) -> None:
        """Sample the inputs that wait for it."""
        if self.held_bytes:
            start = time.perf_counter()
            with torch.no_grad():
                for hook in self._hooks:
                    hook.take_held()
            self.held_bytes = 0
            self.seconds += time.perf_counter() - start

    def _gathered(self) -> Recording:
        """Return the recording, with all that the hooks took."""
        self._sample_held()
        self._recording.waiting += self._emptied(self._hooks)
        return self._recording

    @staticmethod
    def _emptied(hooks: "list[InputHook]") -> list[Taken]:
        """Return what some hooks took, and let them forget it."""
        taken = [each for hook in hooks for each in hook.taken]
        for hook in hooks:
            hook.taken.clear()
        return taken

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
