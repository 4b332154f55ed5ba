"""Options of a quantisation."""

import pytest

from lit_gelu.export import ExportOptionError
from lit_gelu.export.lowering.kernels import TARGETS
from lit_gelu.export.quantization.settings import QuantizationSettings


def test_symmetric_activations_are_those_of_gpu_targets():
    symmetric = {target for target in TARGETS if QuantizationSettings(target, "minmax", 1, 0).symmetric}
    assert symmetric == {"ort-cuda", "tensorrt"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "ort-gpu"}, "Did you mean 'ort-cpu'|Did you mean 'ort-cuda'"),
        ({"method": "min-max"}, "Did you mean 'minmax'"),
        ({"samples": 0}, "samples=0 is not accepted"),
        ({"float_layers": "head"}, r"such as \['head'\]"),
        ({"max_difference": 1.5}, "a share from 0 to 1"),
        ({"max_difference": -0.1}, "a share from 0 to 1"),
    ],
)
def test_mistakes(options, message):
    plain = {"target": "portable", "method": "minmax", "samples": 8, "seed": 0}
    with pytest.raises(ExportOptionError, match=message):
        QuantizationSettings(**{**plain, **options})
