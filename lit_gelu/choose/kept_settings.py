"""What all runs in a folder have in common: by it a call knows whether kept runs are its own."""

from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule

from lit_gelu.choose.plain_text import is_plain, named, told
from lit_gelu.choose.run_files import CONFIGURED
from lit_gelu.choose.samples_text import samples_told
from lit_gelu.data.in_memory import description_of

# Objects that a Trainer changes while it runs: after a call they hold other things than before it.
_BY_TYPE = frozenset({"logger", "profiler", "strategy", "accelerator", "plugins"})
_OF_NO_INFLUENCE = frozenset({"logger", "profiler"})


class ConfiguredBuild(partial[LightningModule]):
    """What builds modules of a configuration: its arguments name the class and all that the class is given.

    So kept runs are known by them, and not by the code that reads them, which may change with lit-gelu.
    """


def settings_before(
    build: Any, exchanged: Sequence[Any], options: Mapping[str, Any], further: Mapping[str, Any], untold: list[str]
) -> dict[str, Any]:
    """Return what was given for all runs, as it is before anything is built.

    Args:
        build: What builds the module.
        exchanged: The targets of a swap.
        options: Of every run's Trainer.
        further: What the caller adds.
        untold: Is given what can be told by its type alone.
    """
    inner = build.func if isinstance(build, partial) else build
    given = {} if inner is build else {**dict(enumerate(build.args)), **build.keywords}
    return {
        "build": CONFIGURED if isinstance(build, ConfiguredBuild) else told(inner, untold),
        "arguments": _nested(given, untold),
        "swap": [told(target, untold) for target in exchanged],
        "trainer": {name: _option_told(name, value, untold) for name, value in sorted(options.items())},
        "settings": _nested(further, untold),
        "versions": {"lit-gelu": version("lit-gelu"), "torch": torch.__version__, "lightning": version("lightning")},
    }


def settings_of_data(data: LightningDataModule, untold: list[str]) -> dict[str, Any]:
    """Return what the data are, once they have been set up.

    Args:
        data: They.
        untold: Is given what can be told by its type alone.
    """
    return {
        "data": named(type(data)),
        "data_arguments": {str(name): told(value, untold) for name, value in sorted(description_of(data).items())},
        "samples": samples_told(data, "fit", untold),
    }


def _nested(value: Any, untold: list[str]) -> Any:
    """Return mappings as such, so that a message can name the entry that is another one."""
    if isinstance(value, Mapping):
        return {str(name): _nested(entry, untold) for name, entry in value.items()}
    return told(value, untold)


def _option_told(name: str, value: Any, untold: list[str]) -> str:
    if name not in _BY_TYPE or is_plain(value):
        return told(value, untold)
    kinds = [named(type(each)) for each in (value if isinstance(value, list | tuple) else [value])]
    if name not in _OF_NO_INFLUENCE:
        untold += [f"Trainer({name}={kind})" for kind in kinds]
    return ", ".join(kinds)
