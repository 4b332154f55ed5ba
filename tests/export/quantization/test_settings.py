"""Options of a quantisation."""

import numpy as np
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
        ({"float_layers": "head"}, r"float_layers='head' is not accepted.*such as \['head'\]"),
        ({"max_difference": 1.5}, "a share from 0 to 1"),
        ({"max_difference": -0.1}, "a share from 0 to 1"),
        ({"target": ["ort-cpu"]}, r"Unknown target=\['ort-cpu'\]"),
        ({"samples": 1.5}, "samples=1.5 is not accepted: give the number of rows"),
        ({"samples": True}, "samples=True is not accepted"),
        ({"samples": None}, "samples=None is not accepted"),
        ({"seed": "0"}, "seed='0' is not accepted: give a whole number"),
        ({"per_channel": "no"}, "per_channel='no' is not accepted. Accepted: True, False"),
        ({"reduce_range": None}, "reduce_range=None is not accepted"),
        ({"float_layers": None}, r"float_layers=None is not accepted: give a list of patterns, such as \['head'\]"),
        ({"float_layers": [1]}, r"float_layers=\[1\] is not accepted"),
        ({"max_difference": "x"}, "max_difference='x' is not accepted: give a share from 0 to 1"),
        ({"max_difference": float("nan")}, "max_difference=nan is not accepted"),
    ],
)
def test_mistakes(options, message):
    plain = {"target": "portable", "method": "minmax", "samples": 8, "seed": 0}
    with pytest.raises(ExportOptionError, match=message):
        QuantizationSettings(**{**plain, **options})


def test_numbers_and_truths_of_numpy_are_taken():
    given = {"samples": np.int64(8), "per_channel": np.bool_(True), "max_difference": np.float32(0.5)}
    assert QuantizationSettings("portable", "minmax", seed=0, **given).samples == 8
