"""The sample that a file and its module are compared on: the given one, the module's own, or one that is made up."""

from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu.export.errors import ModelInputError
from lit_gelu.export.inputs import Call, sample_of, take_apart
from lit_gelu.export.preprocessing import preprocessing_copy, random_pixels, raw_call
from lit_gelu.export.runtime import OnnxPredictor


def sample_call(model: nn.Module, preprocessing: nn.Module | None, input_sample: Any, predictor: OnnxPredictor) -> Call:
    """Return the sample call: of the given sample, of the module's own, or of one made from the file's inputs.

    Args:
        model: The module that was exported.
        preprocessing: The module that the file has before it, if it has one.
        input_sample: As `lit_gelu.export.export_onnx` takes it; ``None`` means the module's own, or a made one.
        predictor: The file.

    Returns:
        The call, ready to be computed.

    Raises:
        ModelInputError: If the sample does not fit, or none can be made for the file's inputs.
    """
    owners = [model] if preprocessing is None else [model, preprocessing]
    if input_sample is None and all(getattr(owner, "example_input_array", None) is None for owner in owners):
        input_sample = _made_sample(predictor, raw=preprocessing is not None)
    if preprocessing is None:
        return take_apart(model, sample_of(model, input_sample))
    call = raw_call(model, preprocessing, input_sample)
    preprocessing_copy(preprocessing, call)  # its own errors, before it is part of a longer computation
    return call


def _made_sample(predictor: OnnxPredictor, *, raw: bool) -> dict[str, Tensor]:
    """Return normal values, and for the first input of a file that takes them raw pixels, in the file's shapes."""
    generator = torch.Generator().manual_seed(0)
    made = {}
    for i, value in enumerate(predictor.session.get_inputs()):
        shape = torch.Size([size if isinstance(size, int) else 2 for size in value.shape])
        if raw and i == 0:
            made[value.name] = random_pixels(shape, generator)
        elif value.type in {"tensor(float)", "tensor(float16)", "tensor(bfloat16)"}:
            made[value.name] = torch.randn(shape, generator=generator)
        else:
            raise ModelInputError(
                f"Input {value.name!r} is {value.type}: give input_sample=, values cannot be made up for it."
            )
    return made
