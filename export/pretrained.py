"""Folders as transformers, sentence-transformers, timm and open_clip save them: the model, and what it is called with.

No code of a folder is run, and weights are read from safetensors alone. Inputs and their open sizes follow from the
configuration: batch, sequence and sampled audio are of any length, images of any size where the model takes that.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu.errors import ArgumentError, MissingExtraError, ModelFileError, message_of, shown
from lit_gelu.extras import need
from lit_gelu.files import parse_json
from lit_gelu.sandbox import preserved_state

# The class of transformers that makes the model; of features and pairs of image and text, the one without a head.
TASKS: Mapping[str, str] = {
    "feature-extraction": "AutoModel",
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "image-classification": "AutoModelForImageClassification",
    "object-detection": "AutoModelForObjectDetection",
    "asr-encoder": "AutoModelForCTC",
    "image-text": "AutoModel",
}
CLIP_CONFIGURATION = "open_clip_config.json"
_MODULES = "modules.json"  # of sentence-transformers
_WEIGHTS = "model.safetensors"
_ROWS, _TOKENS, _SAMPLES, _FRAMES, _IMAGE = 2, 8, 4000, 200, 224  # where no configuration says it
_FIRST_TOKEN = 3  # those before it begin, end and fill in most vocabularies
_BESIDE = ("*.json", "*.txt", "*.model", "*.jinja")  # tokenizers, processors, configurations


@dataclass(frozen=True)
class Pretrained:
    """A model of a folder.

    Args:
        model: In float32, in evaluation mode, without gradients. Two rows of its inputs are its ``example_input_array``
            (by name), unless the folder does not say what the model takes.
        dynamic_shapes: The open sizes beside the batch, as `lit_gelu.export.export_onnx` takes them.
        labels: Names of the classes, in their order; empty if it has none.
        files: What belongs beside an exported file, such as a tokenizer's.
        notes: What a reader should know.
    """

    model: nn.Module
    dynamic_shapes: Mapping[str, Mapping[int, str]]
    labels: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


def open_pretrained(folder: str | Path, task: str | None = None) -> Pretrained:
    """Return the model of a folder, with a sample of its inputs.

    Args:
        folder: As ``save_pretrained`` of transformers, sentence-transformers, timm and open_clip write it.
        task: What a model of transformers is for, one of `TASKS`; by default the class that the folder was saved from.
            Folders of the other libraries hold one model.

    Returns:
        The model with what it is called with.

    Raises:
        ArgumentError: If there is no such task.
        ModelFileError: If the folder holds no model, is damaged, has no safetensors, or no weights for the task's head.
        MissingExtraError: If the library that it is from is not installed.

    Example:
        >>> import tempfile
        >>> from transformers import ViTConfig, ViTModel
        >>> sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        >>> folder = tempfile.mkdtemp()
        >>> ViTModel(ViTConfig(image_size=32, patch_size=16, **sizes)).save_pretrained(folder)
        >>> {name: list(tensor.shape) for name, tensor in open_pretrained(folder).model.example_input_array.items()}
        {'pixel_values': [2, 3, 32, 32]}
    """
    folder = Path(folder)
    if task is not None and task not in TASKS:
        raise ArgumentError(f"task={shown(task)} is not accepted. Give one of {', '.join(TASKS)}.")
    configuration = configuration_of(folder)
    try:
        if (folder / _MODULES).is_file():
            model: nn.Module = SentenceEncoder(folder)
        elif (folder / CLIP_CONFIGURATION).is_file():
            model = _of_open_clip(folder, configuration)
        else:
            of_timm = "architecture" in configuration
            model = _of_timm(folder, configuration) if of_timm else _of_transformers(folder, task)
        files = (f for pattern in _BESIDE for f in folder.glob(pattern) if not f.name.endswith(".index.json"))
        return pretrained(model, folder, tuple(sorted(files)))
    except (ModelFileError, MissingExtraError):
        raise
    except Exception as error:  # of several libraries, each with errors of its own
        raise ModelFileError(
            f"{str(folder)!r} cannot be loaded ({type(error).__name__}: {message_of(error)}). Give the module that is "
            "built from it."
        ) from error


def pretrained(model: nn.Module, folder: Path | None = None, files: tuple[Path, ...] = ()) -> Pretrained:
    """Return a model of one of these libraries with what it is called with; its folder may have a processor's file."""
    model = model.float().eval().requires_grad_(False)
    processor = _json(folder / "preprocessor_config.json") if folder is not None else {}
    sample = _sample(model, processor)
    sizes: dict[str, dict[int, str]] = {}
    notes: list[str] = []
    for name, tensor in sample.items():
        if tensor.ndim == 2:
            sizes[name] = {1: "samples" if tensor.shape[1] == _SAMPLES else _TEXT[name]}
        elif tensor.ndim == 4:
            larger = {**sample, name: nn.functional.pad(tensor, (0, 64, 0, 32))}
            if _takes(model, larger):
                sizes[name] = {2: "height", 3: "width"}
            else:
                notes.append(f"{name}: the model takes images of {tensor.shape[2]} x {tensor.shape[3]} alone.")
    if sample:
        model.example_input_array = sample  # type: ignore[assignment]  # as Lightning's modules have it
    return Pretrained(model, sizes, _labels(model), files, tuple(notes))


def _takes(model: nn.Module, sample: Mapping[str, Tensor]) -> bool:
    try:
        with preserved_state(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
            model(**sample)
    except Exception:  # noqa: BLE001 - forward may raise anything: it does not take these sizes
        return False
    return True


def _sample(model: nn.Module, processor: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return two rows of what a model's forward takes, by the sizes that its configuration names."""
    generator = torch.Generator().manual_seed(0)
    names = inspect.signature(model.forward).parameters
    config = getattr(model, "config", None)
    if config is None:  # timm; open_clip does not say what its models take
        described = getattr(model, "pretrained_cfg", None) or {}
        size = described.get("input_size")
        return {} if size is None else {next(iter(names)): torch.randn(_ROWS, *size, generator=generator)}
    main = getattr(model, "main_input_name", "input_ids")
    sample: dict[str, Tensor] = {}
    text = config.get_text_config()
    if "input_ids" in names and (main == "input_ids" or "pixel_values" in names):
        sample["input_ids"] = ids = _tokens(text.vocab_size, _TOKENS, generator)
        if "attention_mask" in names:
            sample["attention_mask"] = torch.ones_like(ids)
        if "token_type_ids" in names and getattr(text, "type_vocab_size", 0) > 1:
            sample["token_type_ids"] = torch.zeros_like(ids)
    if "pixel_values" in names:
        vision = getattr(config, "vision_config", config)
        size = _image_size(processor, vision)
        sample["pixel_values"] = torch.randn(_ROWS, getattr(vision, "num_channels", 3), *size, generator=generator)
    if "input_values" in names:
        sample["input_values"] = torch.randn(_ROWS, _SAMPLES, generator=generator)
        if processor.get("return_attention_mask") and "attention_mask" in names:
            sample["attention_mask"] = torch.ones(_ROWS, _SAMPLES, dtype=torch.long)
    if "input_features" in names:
        length = 2 * getattr(config, "max_source_positions", _FRAMES // 2)
        sample["input_features"] = torch.randn(_ROWS, config.num_mel_bins, length, generator=generator)
    if config.is_encoder_decoder and sample and "decoder_input_ids" in names:
        sample["decoder_input_ids"] = _tokens(text.vocab_size, _TOKENS - 2, generator)
    return sample


def _tokens(vocabulary: int, count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(min(_FIRST_TOKEN, vocabulary - 1), vocabulary, (_ROWS, count), generator=generator)


# Inputs whose axis 1 counts tokens, and the name of that size.
_TEXT = {
    "input_ids": "sequence",
    "attention_mask": "sequence",
    "token_type_ids": "sequence",
    "decoder_input_ids": "decoder_sequence",
}


def _image_size(processor: Mapping[str, Any], vision: Any) -> tuple[int, int]:
    """Return height and width: what the processor makes, or what the model was made for."""
    crop = processor.get("crop_size") if processor.get("do_center_crop", True) else None
    for size in (crop, processor.get("size"), getattr(vision, "image_size", None)):
        if isinstance(size, Mapping) and {"height", "width"} <= size.keys():
            return int(size["height"]), int(size["width"])
        if isinstance(size, int):
            return size, size
        if isinstance(size, (list, tuple)) and len(size) == 2:
            return int(size[0]), int(size[1])
    return _IMAGE, _IMAGE


def _labels(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the classes that the first output is about."""
    names = getattr(getattr(model, "config", None), "id2label", None)
    classifies = type(model).__name__.endswith(("SequenceClassification", "ImageClassification", "TokenClassification"))
    return tuple(str(names[i]) for i in sorted(names)) if names and classifies else ()


def configuration_of(folder: Path) -> dict[str, Any]:
    """Return a folder's configuration.

    Raises:
        ModelFileError: If there is none, or it is damaged.
    """
    names = (CLIP_CONFIGURATION, "config.json", _MODULES)
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise ModelFileError(
            f"{str(folder)!r} has no config.json. Give a folder as transformers, sentence-transformers, timm or "
            "open_clip save a model."
        )
    return {} if path.name == _MODULES else _json(path)


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{str(path)!r} is damaged: {message_of(error)}. Copy or download it again.") from error
    if not isinstance(content, dict):
        raise ModelFileError(f"{str(path)!r} holds no configuration. Copy or download it again.")
    return content


def _of_transformers(folder: Path, task: str | None) -> nn.Module:
    transformers: Any = need("transformers", extra="folders", what="A folder of transformers")
    options = {"local_files_only": True, "trust_remote_code": False}
    config = transformers.AutoConfig.from_pretrained(folder, **options)
    name = next(iter(config.architectures or ()), "") if task is None else TASKS[task]
    to_encoder = task == "asr-encoder" and config.is_encoder_decoder
    cls: Any = getattr(transformers, name, None) if name.isidentifier() and not to_encoder else None
    is_automatic = name.startswith("Auto") and hasattr(cls, "from_pretrained")
    if not is_automatic and not (inspect.isclass(cls) and issubclass(cls, transformers.PreTrainedModel)):
        cls = transformers.AutoModel
    config.use_cache = False
    transformers.utils.logging.disable_progress_bar()
    options |= {"config": config, "use_safetensors": True, "output_loading_info": True}
    model, info = cls.from_pretrained(folder, **options)
    missing = sorted(map(str, info["missing_keys"]))
    if missing and all("pooler" in key for key in missing):  # of a model that was trained without
        model, info = cls.from_pretrained(folder, **options, add_pooling_layer=False)
        missing = sorted(map(str, info["missing_keys"]))
    if missing:
        raise ModelFileError(
            f"{str(folder)!r} has no weights for {', '.join(missing[:3])} of {type(model).__name__}, which would be "
            "random. Give the task that the folder was trained for."
        )
    module: nn.Module = model.get_encoder() if to_encoder else model
    return module


class SentenceEncoder(nn.Module):
    """A model of sentence-transformers: tokens to an embedding a sentence, as its pooling and normalisation make it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        for part in parse_json((folder / _MODULES).read_text(encoding="utf-8")):
            # Another type is code of the folder, which versions before 6 import unasked.
            if not part["type"].startswith("sentence_transformers."):
                raise ModelFileError(f"{str(folder)!r} has a part of its own, {shown(part['type'])}, which is not run.")
            place = folder / part["path"]
            if (place / "pytorch_model.bin").is_file() and not any(place.glob("model.safetensors*")):
                raise ModelFileError(f"{str(place)!r} has pickled weights. Save them as safetensors.")
        library: Any = need("sentence_transformers", extra="folders", what="A folder of sentence-transformers")
        options = {"local_files_only": True, "trust_remote_code": False, "model_kwargs": {"use_safetensors": True}}
        self.model = library.SentenceTransformer(str(folder), device="cpu", **options)
        self.config = self.model[0].auto_model.config

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return embeddings of sentences and of tokens."""
        features = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            features["token_type_ids"] = token_type_ids
        output = self.model(features)
        return {name: output[name] for name in ("sentence_embedding", "token_embeddings")}


def _of_timm(folder: Path, configuration: Mapping[str, Any]) -> nn.Module:
    arguments = {"num_classes": configuration.get("num_classes"), **(configuration.get("model_args") or {})}
    # Of the images that it was trained on; older folders have it flat, newer ones with fields that this timm has not.
    described = configuration.get("pretrained_cfg", configuration)
    if isinstance(described, Mapping):
        fields = need("timm", extra="folders", what="A model of timm").models.PretrainedCfg.__dataclass_fields__
        arguments["pretrained_cfg"] = {name: value for name, value in described.items() if name in fields}
    return timm_model(configuration["architecture"], folder / _WEIGHTS, arguments)  # timm drops None


def timm_model(name: object, weights: Path, arguments: Mapping[str, Any] = MappingProxyType({})) -> nn.Module:
    """Return an architecture of timm with the weights of a file of safetensors.

    Raises:
        ModelFileError: If timm has no such architecture, or the file is missing or does not fit.
        MissingExtraError: If timm is not installed.
    """
    timm: Any = need("timm", extra="folders", what="A model of timm")
    if not isinstance(name, str) or not timm.is_model(name):
        raise ModelFileError(f"timm has no architecture {shown(name)}. Give the module that is built from the weights.")
    options = {**arguments, "checkpoint_path": _weights(weights), "pretrained": False}
    try:
        model: nn.Module = timm.create_model(name, **options)
    except Exception as error:
        raise ModelFileError(f"{str(weights)!r} does not fit {name} of timm: {message_of(error)}.") from error
    return model


def _of_open_clip(folder: Path, configuration: Mapping[str, Any]) -> nn.Module:
    open_clip: Any = need("open_clip", extra="folders", what="A folder of open_clip")
    if configuration["model_cfg"]["text_cfg"].get("hf_model_name"):  # open_clip would ask the Hub for its configuration
        raise ModelFileError(
            f"{str(folder)!r} does not configure its text model. Give the module that is built from it."
        )
    _weights(folder / "open_clip_model.safetensors")  # else open_clip takes pickled ones
    model: nn.Module = open_clip.create_model(f"local-dir:{folder}")
    return model


def _weights(path: Path) -> Path:
    if path.suffix != ".safetensors" or not path.is_file():
        raise ModelFileError(f"There is no {path.name} in {str(path.parent)!r}. Save the weights as safetensors.")
    return path
