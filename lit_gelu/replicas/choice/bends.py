"""How curved the loss is where a run of a candidate ended, and how curved its activations are there."""

import math
from collections.abc import Sequence
from typing import Any

from lightning.pytorch import LightningModule

from lit_gelu.activations import ActivationRegistry
from lit_gelu.curvature.activation_measurement import statistics_on
from lit_gelu.curvature.loss import LossProbe
from lit_gelu.curvature.loss_measurement import measure_loss
from lit_gelu.curvature.plots import statistic_of
from lit_gelu.curvature.settings import LossSettings

EXAMPLES = 512  # of the training set, the first ones in the order of seed 0
_LOSS = LossSettings(quantities=("top_eigenvalue", "trace"), mode="eval", lanczos_steps=24, max_trace_probes=12)


def bends(module: LightningModule, batches: Sequence[Any], registry: ActivationRegistry) -> dict[str, float]:
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
    sites = statistics_on(module, batches, registry, getattr(module, "example_input_array", None)).measured.values()
    for name in ("curvature", "share_saturated"):
        numbers = [value for site in sites if math.isfinite(value := statistic_of(site, name))]
        if numbers:
            found[name] = math.fsum(numbers) / len(numbers)
    return found
