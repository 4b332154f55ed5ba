"""The int8 file against the module, batch by batch: its outputs, and the activations within it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import torch

from lit_gelu.export.errors import ModelInputError
from lit_gelu.export.metadata import FileMetadata
from lit_gelu.export.parity.activation_census import optimized_graph
from lit_gelu.export.parity.families import Batch
from lit_gelu.export.parity.layers import captured, run_with_outputs
from lit_gelu.export.parity.references import References
from lit_gelu.export.parity.sessions import SessionSetup, file_inputs, run_file
from lit_gelu.export.parity.subgraph import SiteNodes, site_nodes
from lit_gelu.export.quantization.noise import Noise
from lit_gelu.export.quantization.report import LayerNoise, OutputNoise
from lit_gelu.export.runtime import OnnxPredictor

_INNER_BATCHES = 4  # that inner values are compared on: they are many, and their noise settles quickly


@dataclass
class Comparison:
    """Compares one file with one module.

    Args:
        path: The file.
        predictor: Runs it.
        setup: How it was opened.
        metadata: What it says of itself.
        references: Run the module.
    """

    path: Path
    predictor: OnnxPredictor
    setup: SessionSetup
    metadata: FileMetadata
    references: References
    model: onnx.ModelProto = field(init=False)
    optimized: onnx.ModelProto = field(init=False)
    sites: list[SiteNodes] = field(init=False)

    def __post_init__(self) -> None:
        self.model = onnx.load(self.path)
        self.optimized = optimized_graph(self.path, self.setup)
        self.sites = site_nodes(self.model, {record.site: record.calls for record in self.metadata.sites})
        self._outputs = {name: Noise() for name in self.predictor.output_names}
        self._layers = {(site.site, site.call): Noise() for site in self.sites}

    def run(self, batches: Iterable[Batch]) -> None:
        """Compare on batches.

        Args:
            batches: Inputs in the file's order.

        Raises:
            ModelInputError: If the module returns another number of tensors than the file.
        """
        for number, batch in enumerate(batches):
            fed = file_inputs(self.predictor, batch)
            y = run_file(self.predictor, fed)
            expected = self.references.run(self.references.float32, fed, torch.float32)
            if len(y) != len(expected):
                raise ModelInputError(
                    f"The file has {len(y)} outputs ({', '.join(self._outputs)}), the module returns {len(expected)} "
                    "tensors. Give the module that the file was exported from."
                )
            for noise, output, reference in zip(self._outputs.values(), y, expected, strict=True):
                noise.add(output, reference)
            if number < _INNER_BATCHES and self.sites:
                self._add_layers(fed)

    def _add_layers(self, batch: Batch) -> None:
        """Compare the activations within."""
        expected = captured(self.references, self.references.float32, batch, torch.float32)
        names = list(dict.fromkeys(site.y for site in self.sites))
        values = run_with_outputs(self.model, names, batch, self.setup)
        for site in self.sites:
            place = (site.site, site.call)
            if place in expected:  # a call of a function has no output of its own in the module
                self._layers[place].add(values[site.y], expected[place])

    def output_noises(self) -> tuple[OutputNoise, ...]:
        """Return what each output is off by."""
        return tuple(
            OutputNoise(
                output=name,
                rows=noise.differences.count,
                sqnr=noise.sqnr,
                max_abs_error=noise.differences.max_abs,
                scale=noise.differences.scale,
                nonfinite=noise.differences.nonfinite,
                top1_agreement=noise.top1_agreement,
                top1_changes=len(noise.differences.changed_margins) if noise.differences.compared_rows else None,
            )
            for name, noise in self._outputs.items()
        )

    def layer_noises(self) -> tuple[LayerNoise, ...]:
        """Return what the output of each activation is off by, in the file's order."""
        return tuple(LayerNoise(*place, noise.sqnr) for place, noise in self._layers.items() if noise.differences.count)
