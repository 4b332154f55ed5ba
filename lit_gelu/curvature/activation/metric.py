"""`ActivationStatistics`: the statistics of activations as a `torchmetrics.Metric`, for use outside a Trainer."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.curvature.activation.formulas import formulas_of
from lit_gelu.curvature.activation.statistics import SUMS, measure, statistics_by_site
from lit_gelu.errors import ArgumentError


class ActivationStatistics(Metric):
    """Accumulates the statistics of the pre-activations of some sites over batches and processes.

    It has one state, the sums as one tensor ``[sites, columns]``: one reduction
    over processes whatever the number of sites. Moments are taken about 0 in float64, which is good for skewness and
    kurtosis as long as the mean is below a thousand deviations.

    Args:
        sites: The activations by name, as specs or modules; a module's parameters are read at each `update`.
        registry: Where activations are looked up; the default registry if not given.
        **kwargs: As `torchmetrics.Metric`.

    Example:
        >>> metric = ActivationStatistics({"first": "gelu", "second": "relu"})
        >>> metric.update({"first": torch.tensor([-1.0, 0.0, 1.0]), "second": torch.tensor([-3.0, 1.0])})
        >>> metric.update({"second": torch.tensor([2.0, 4.0])})
        >>> figures = metric.compute()
        >>> figures["first"]["mean"], figures["second"]["mean"], figures["second"]["share_linear"]
        (0.0, 1.0, 0.75)
    """

    is_differentiable = False
    full_state_update = False
    sums: Tensor

    def __init__(self, sites: Mapping[str, Any], registry: ActivationRegistry | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.registry = registry_or_default(registry)
        self._sites = {
            name: site if isinstance(site, nn.Module) else self.registry.create(site) for name, site in sites.items()
        }
        self.add_state("sums", torch.zeros(len(sites), len(SUMS), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, pre_activations: Mapping[str, Tensor]) -> None:
        """Take in the pre-activations of one batch, by site; one may be left out, and no other name is accepted."""
        unknown = pre_activations.keys() - self._sites.keys()
        if unknown:
            raise ArgumentError(f"No such site: {', '.join(unknown)}. Sites: {', '.join(self._sites)}.")
        for number, (name, module) in enumerate(self._sites.items()):
            if name in pre_activations:
                activity = measure(formulas_of(module, self.registry), pre_activations[name].unsqueeze(0))
                self.sums[number] += activity.sums[0].to(self.sums)

    def compute(self) -> dict[str, dict[str, float]]:
        """Return the figures by site and statistic; all NaN for a site that had no input."""
        return statistics_by_site(self._sites, self.sums)

    def set_dtype(self, dst_type: str | torch.dtype) -> "ActivationStatistics":
        """Keep the sums in float64, whatever type a model is given."""
        del dst_type
        return self
