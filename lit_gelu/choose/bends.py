"""How curved the loss is where a run of a candidate ended, and how curved its activations are there."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from lightning.pytorch import LightningModule

from lit_gelu.activations import ActivationRegistry
from lit_gelu.curvature.activation_measurement import BatchStatistics, statistics_on
from lit_gelu.curvature.loss import LossProbe
from lit_gelu.curvature.loss_measurement import measure_loss
from lit_gelu.curvature.plots import statistic_of
from lit_gelu.curvature.probe.forward_inputs import forward_sample
from lit_gelu.curvature.settings import LossSettings

EXAMPLES = 512  # of the training set, the first ones in the order of seed 0
_LOSS = LossSettings(quantities=("top_eigenvalue", "trace"), mode="eval", lanczos_steps=24, max_trace_probes=12)


class Bends(NamedTuple):
    """Figures of curvature by name, and what to say where there is no mean curvature of the activations."""

    figures: dict[str, float]
    unknown: str


def bends(module: LightningModule, batches: Sequence[Any], registry: ActivationRegistry) -> Bends:
    """Return figures of curvature, in evaluation mode.

    Args:
        module: It, trained.
        batches: What its ``training_step`` takes.
        registry: Which names activations.

    Returns:
        ``top_eigenvalue`` and ``trace`` of the loss's Hessian; means over the sites of ``curvature`` (``E |f''|``,
        kinks included) and ``share_saturated`` (inputs at which ``|f'| < 0.01``). What cannot be measured is not there.
    """
    found: dict[str, float] = {}
    with LossProbe(module, batches, mode="eval") as probe:
        loss = measure_loss(probe, _LOSS)
    if "top_eigenvalue" in loss.eigenpairs:
        found["top_eigenvalue"] = loss.eigenpairs["top_eigenvalue"].value
    if loss.trace is not None:
        found["trace"] = loss.trace.trace
    sample = forward_sample(module, batches[0])
    sites = statistics_on(module, batches, registry, sample)
    for name in ("curvature", "share_saturated"):
        numbers = [value for site in sites.measured.values() if math.isfinite(value := statistic_of(site, name))]
        if numbers:
            found[name] = math.fsum(numbers) / len(numbers)
    return Bends(found, "" if "curvature" in found else _why_unknown(sites, sample is not None))


def _why_unknown(sites: BatchStatistics, sampled: bool) -> str:
    """Return the rest of a sentence on why there is no mean curvature, and what mends it."""
    if sites.measured:
        return (
            "nothing says where its f' jumps. State it with the activation: register(name, facts=ActivationFacts(...))."
        )
    remedy = "" if sampled else " Give the module an example_input_array: calls are found by running its forward."
    if not sites.refused:
        return f"the module has no activation{', and running it calls none' if sampled else ''}.{remedy}"
    reasons = "; ".join(f"{site}: {reason}" for site, reason in sites.refused.items())
    return f"no activation was observed. {reasons}.{remedy}"
