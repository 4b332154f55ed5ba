"""Folders as transformers, timm and open_clip save them: what they declare, and the model without remote code."""

import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from lit_gelu.errors import AuditError, message_of, shown
from lit_gelu.extras import need
from lit_gelu.files import parse_json

_KEYS = ("hidden_act", "hidden_activation", "activation_function", "activation", "act_layer", "feed_forward_proj")
_CLIP, _QUICK = "open_clip_config.json", "quick_gelu"


def declared_activations(folder: Path) -> dict[str, str]:
    """Return what a configuration says of activations, by the path of the key: ``vision_config.hidden_act``."""
    return dict(_declared(_configuration(folder), ""))


def _declared(configuration: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    for key, value in configuration.items():
        if isinstance(value, Mapping):
            yield from _declared(value, f"{path}{key}.")
        elif key in _KEYS and isinstance(value, str):
            yield f"{path}{key}", value
        elif key == _QUICK and isinstance(value, bool):
            yield f"{path}{key}", _QUICK if value else "gelu"


def declared_at(name: str, declared: Mapping[str, str]) -> str:
    """Return what is declared for a site: by the part of the model whose name the key's path begins with, if any."""
    # open_clip's flag is of its own blocks' GELU, not of its ResNets and of models of timm.
    declared = {path: value for path, value in declared.items() if name.endswith("gelu") or not path.endswith(_QUICK)}
    for path, value in declared.items():
        part = path.rpartition(".")[0].rpartition(".")[2].removesuffix("_config").removesuffix("_cfg")
        if part and part in name:
            return f"{path}={value}"
    plain = [f"{path}={value}" for path, value in declared.items() if "." not in path]
    return plain[0] if plain else next((f"{p}={v}" for p, v in declared.items() if len(declared) == 1), "")


def _configuration(folder: Path) -> dict[str, Any]:
    path = next((folder / name for name in (_CLIP, "config.json") if (folder / name).is_file()), None)
    if path is None:
        raise AuditError(
            f"{str(folder)!r} has no config.json. Give a folder as transformers, timm or open_clip save a model."
        )
    try:
        configuration = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AuditError(f"{str(path)!r} is damaged: {message_of(error)}. Copy or download it again.") from error
    if not isinstance(configuration, dict):
        raise AuditError(f"{str(path)!r} holds no configuration. Copy or download it again.")
    return configuration


def model_of_folder(folder: Path) -> nn.Module:
    """Return the model of a folder, with weights from its safetensors files; no code of the folder is run."""
    configuration = _configuration(folder)
    try:
        if (folder / _CLIP).is_file():
            return _of_open_clip(folder, configuration["model_cfg"])
        return _of_timm(folder, configuration) if "architecture" in configuration else _of_transformers(folder)
    except (AuditError, ImportError):
        raise
    except Exception as error:  # of three libraries, each with errors of its own
        raise AuditError(
            f"{str(folder)!r} cannot be loaded ({type(error).__name__}: {message_of(error)}). Give the module that is "
            "built from it."
        ) from error


def _of_transformers(folder: Path) -> nn.Module:
    transformers: Any = need("transformers", extra="audit", what="A folder of transformers")
    options = {"trust_remote_code": False, "local_files_only": True}
    configuration = transformers.AutoConfig.from_pretrained(folder, **options)
    name = next(iter(configuration.architectures or ()), "")
    cls: Any = getattr(transformers, name, None) if name.isidentifier() else None
    if not (inspect.isclass(cls) and issubclass(cls, transformers.PreTrainedModel)):
        cls = transformers.AutoModel
    model: nn.Module = cls.from_pretrained(folder, config=configuration, use_safetensors=True, **options)
    return model


def _of_timm(folder: Path, configuration: Mapping[str, Any]) -> nn.Module:
    timm: Any = need("timm", extra="audit", what="A folder of timm")
    name, arguments = configuration["architecture"], configuration.get("model_args") or {}
    if not isinstance(name, str) or not timm.is_model(name) or not isinstance(arguments, Mapping):
        raise AuditError(f"timm has no architecture {shown(name)}. Give the module that is built from the folder.")
    arguments = {"num_classes": configuration.get("num_classes"), **arguments}  # timm drops None
    weights = _weights(folder / "model.safetensors")
    model: nn.Module = timm.create_model(name, pretrained=False, checkpoint_path=weights, **arguments)
    return model


def _of_open_clip(folder: Path, configuration: Mapping[str, Any]) -> nn.Module:
    open_clip: Any = need("open_clip", extra="audit", what="A folder of open_clip")
    if configuration["text_cfg"].get("hf_model_name"):  # open_clip would ask the Hub for its configuration
        raise AuditError(f"{str(folder)!r} does not configure its text model. Give the module that is built from it.")
    _weights(folder / "open_clip_model.safetensors")  # else open_clip takes pickled ones
    model: nn.Module = open_clip.create_model(f"local-dir:{folder}")
    return model


def _weights(path: Path) -> Path:
    if not path.is_file():
        raise AuditError(f"There is no {path.name} in {str(path.parent)!r}. Save the weights as safetensors.")
    return path
