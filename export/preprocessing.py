"""Preprocessing as a part of the file: raw pixels go in, and what the module takes is computed in the graph."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu.errors import ArgumentError, ModelInputError
from lit_gelu.export.copying import evaluation_copy
from lit_gelu.export.inputs import RAW_DTYPE, Call, plain_tensor, random_pixels, sample_of, take_apart
from lit_gelu.export.metadata import class_path
from lit_gelu.sandbox import input_sample_of, is_left_to_model

_ROWS = 256  # raw test inputs at once


def sample_call(model: nn.Module, preprocessing: nn.Module, input_sample: Any) -> tuple[Call, nn.Module]:
    """Return a sample call of ``model(preprocessing(raw), ...)``, and a copy of the preprocessing that took it."""
    # With preprocessing the first tensor is raw pixels, by default those of its example_input_array before the module's
    # other tensors, or random ones of the shape of the module's first.
    if not isinstance(preprocessing, nn.Module):
        raise ArgumentError(
            f"preprocessing={type(preprocessing).__name__} is not accepted. Give a torch.nn.Module that turns raw "
            "pixels (uint8) into what the module takes, such as MNISTData().preprocessing()."
        )
    pixels = input_sample_of(preprocessing)
    if not is_left_to_model(input_sample):
        call = take_apart(model, input_sample)
    elif pixels is not None and input_sample_of(model) is None:
        call = take_apart(model, pixels)
    else:
        call = take_apart(model, sample_of(model, None))
        if pixels is None:
            pixels = random_pixels(call.tensors[0].shape, torch.Generator().manual_seed(0))
        rows = torch.arange(call.batch_size) % len(pixels)
        call = replace(call, tensors=(plain_tensor(pixels)[rows], *call.tensors[1:]))
    if call.tensors[0].dtype != RAW_DTYPE:
        raise ModelInputError(
            f"The sample's first input, {call.names[0]!r}, is {call.tensors[0].dtype}; with preprocessing= the file "
            "takes raw pixels. Give input_sample= as torch.uint8, as it is before the preprocessing."
        )
    return call, _tried_copy(preprocessing, call.tensors[0])


@torch.no_grad()
def _tried_copy(preprocessing: nn.Module, raw: Tensor) -> nn.Module:
    twin, name = evaluation_copy(preprocessing), type(preprocessing).__name__
    try:
        with torch.random.fork_rng(devices=[]):
            fed = twin(raw.clone())
    except Exception as error:
        raise ModelInputError(
            f"The preprocessing {name} fails on raw pixels of shape {list(raw.shape)}: {error} Give input_sample=."
        ) from error
    if not isinstance(fed, Tensor) or not fed.is_floating_point() or fed.shape[:1] != raw.shape[:1]:
        description = f"{fed.dtype} of shape {list(fed.shape)}" if isinstance(fed, Tensor) else type(fed).__name__
        raise ModelInputError(
            f"The preprocessing {name} turns pixels of shape {list(raw.shape)} into {description}; accepted: a "
            f"floating-point tensor [{len(raw)}, ...]."
        )
    return twin


def preprocessing_of_file(
    recorded: str, file: str, preprocessing: nn.Module | None, data: Any
) -> tuple[nn.Module | None, Any, list[str]]:
    """Return the preprocessing that a file is compared with, the data as raw pixels, and what is to be noted."""
    if not recorded and preprocessing is None:
        return None, data, []
    if not recorded:
        raise ModelInputError(f"{file} was exported without preprocessing: leave out preprocessing=, or export anew.")
    notes, of_module = [], is_data_module(data)
    if preprocessing is None and of_module and callable(getattr(data, "preprocessing", None)):
        preprocessing = data.preprocessing()
    if preprocessing is None:
        raise ModelInputError(
            f"{file} takes raw pixels, {recorded} is a part of it. Give preprocessing= the module that it was exported "
            "with, or as data a data module that has it (lit-gelu parity: --data)."
        )
    if of_module and callable(getattr(data, "raw_test_inputs", None)):
        data = list(data.raw_test_inputs().split(_ROWS))  # a tuple would be one batch
    elif of_module:
        name = type(data).__name__
        notes.append(f"{name} has no raw_test_inputs(), so the file was compared on random pixels and not on data.")
        data = None
    if (there := describe(preprocessing)) != recorded:
        notes.append(f"the preprocessing is {recorded} in the file and {there} here.")
    return preprocessing, data, notes


def is_data_module(data: Any) -> bool:
    """Return whether data are a LightningDataModule, or made like one."""
    return hasattr(data, "test_dataloader")


def describe(preprocessing: nn.Module) -> str:
    """Return the class of a preprocessing, of a sequence the classes of its parts, as dotted paths."""
    if type(preprocessing) is nn.Sequential:
        return ", ".join(describe(part) for part in preprocessing)
    return class_path(preprocessing)
