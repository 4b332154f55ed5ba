"""What a breach comes from: the first layer that shows it, and what of onnxruntime causes it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch

from lit_gelu.export.parity.causes.culprit import Culprit, find_culprit
from lit_gelu.export.parity.causes.divergence import (
    Checkpoint,
    Divergence,
    LayerError,
    checkpoints,
    first_divergence,
    layer_errors,
)
from lit_gelu.export.parity.execution import SessionSetup, run_file
from lit_gelu.export.parity.input_families import Batch
from lit_gelu.export.parity.references import References
from lit_gelu.export.parity.subgraph import SiteNodes


@dataclass(frozen=True)
class Subject:
    """What is looked into."""

    path: Path
    model: onnx.ModelProto
    found: Sequence[SiteNodes]
    calls: dict[str, int]  # how often the graph calls each site, as the file records it
    references: References
    setup: SessionSetup
    tolerance: float  # what float32 arithmetic may cost
    # Sites whose scale factors are in neighbouring weights: their values are not the module's.
    folded: frozenset[str] = frozenset()

    @property
    def dtype(self) -> torch.dtype:
        """The file's dtype."""
        return self.references.dtype

    def checkpoints(self, batch: Batch) -> list[Checkpoint]:
        """Return the activations that both have, with what they should give for a batch."""
        found = [entry for entry in self.found if entry.site not in self.folded]
        calls = {site: count for site, count in self.calls.items() if site not in self.folded}
        return checkpoints(self.model, found, calls, self.references, batch, self.setup, self.tolerance)

    def layers(self, batch: Batch) -> list[LayerError]:
        """Return the error of every activation on a batch."""
        points = self.checkpoints(batch)
        return layer_errors(self.model, points, batch, self.setup, self.dtype, self.tolerance)

    def divergence(self, batch: Batch) -> Divergence:
        """Return the first layer outside its limit on a batch."""
        points = self.checkpoints(batch)
        return first_divergence(self.model, points, batch, self.setup, self.dtype, self.tolerance)

    def culprit(self, batch: Batch, excess: Callable[[list[np.ndarray]], float]) -> Culprit | None:
        """Return what causes a breach on a batch, of which `excess` judges outputs; ``None`` if there is none."""
        return find_culprit(self.path, self.setup, lambda setup: excess(run_file(setup.open(self.path), batch)))
