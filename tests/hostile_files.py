"""Files that would run a program if a reader imported or called what they name; a marker shows whether one did."""

import copy
import sys
from collections.abc import Callable
from pathlib import Path

import torch

MODULE = "module_that_a_file_names"
OWN = "lit_gelu.tasks.MNISTClassifier"
INSTANTIATOR = "lightning.pytorch.cli.instantiate_module"
SITE = "hidden.0.activation"


def write_module(folder: Path) -> Path:
    """Write the module that nobody may import, and return the marker that it would leave."""
    marker = folder / "ran"
    (folder / f"{MODULE}.py").write_text(
        f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n"
        "from lightning.pytorch import LightningModule\n"
        "class Thing(LightningModule):\n    def __init__(self, *args, **kwargs):\n        super().__init__()\n"
        "def run(*args, **kwargs):\n    return args\n"
    )
    return marker


def nothing_ran(marker: Path) -> bool:
    return not marker.exists() and MODULE not in sys.modules


class Runs:
    """What pickle would build by a call."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self):
        return open, (self.marker, "w")


def _hyper(**changes) -> Callable:
    def change(checkpoint, marker):
        for name, value in changes.items():
            checkpoint["hyper_parameters"][name] = value(marker) if callable(value) else value

    return change


def _cli(**changes) -> Callable:
    """As LightningCLI writes it, so that Lightning hands the rest to jsonargparse."""
    return _hyper(_class_path=OWN, _instantiator=INSTANTIATOR, **changes)


def _top(**changes) -> Callable:
    def change(checkpoint, marker):
        for name, value in changes.items():
            checkpoint[name] = value(marker) if callable(value) else value

    return change


def _swap_record(site: str, new: str) -> dict:
    return {"epoch": 0, "step": 0, "order": 0, "sites": {site: {"old": "relu", "new": new}}}


def _state_of_swap(checkpoint, marker):
    key = next((key for key in checkpoint["callbacks"] if "ActivationSwap" in key), "ActivationSwap{}")
    checkpoint["callbacks"][key] = {"applied": True, "record": _swap_record(SITE, f"{MODULE}.Thing")}
    checkpoint.pop("lit_gelu_activation_swaps", None)


def _swaps(record) -> Callable:
    def change(checkpoint, marker):
        keys = [key for key in checkpoint["callbacks"] if "ActivationSwap" in key] or ["ActivationSwap{}"]
        checkpoint["lit_gelu_activation_swaps"] = [{"state_key": key, "record": record} for key in keys]

    return change


def _optimizer_state(checkpoint, marker):
    for state in checkpoint["optimizer_states"]:
        state["param_groups"][0]["foreach"] = {"class_path": f"{MODULE}.Thing"}


def _lambdify(marker) -> str:
    return f"sympy.lambdify(expr=\"__import__('pathlib').Path({str(marker)!r}).touch()\", dummify=True)"


THING = f"{MODULE}.Thing"
CHECKPOINTS: dict[str, Callable] = {
    "activation calls sympy.lambdify": _hyper(activation=_lambdify),
    "activation calls torch.save": _hyper(activation=lambda marker: f"torch.save(f={str(marker)!r})"),
    "activation is imported": _hyper(activation=THING),
    "activation is a function": _hyper(activation=f"{MODULE}.run(kind='x')"),
    "activation is a class path": _hyper(activation={"class_path": THING}),
    "activation is a class path that calls": _hyper(
        activation=lambda marker: {"class_path": "os.system", "init_args": {"command": f"touch {marker}"}}
    ),
    "activation nests a class path": _hyper(activation={"name": "gelu", "approximate": {"class_path": THING}}),
    "activation's name is a class path": _hyper(activation={"name": THING}),
    "activation that begins with an alias": _hyper(activation=lambda marker: f"gelu_new.open(file={str(marker)!r})"),
    "activation in letters that look alike": _hyper(activation=f"{MODULE}\uff0eThing"),
    "class path": _hyper(_class_path=THING),
    "class path and instantiator": _hyper(_class_path=THING, _instantiator=INSTANTIATOR),
    "instantiator": _hyper(_class_path=OWN, _instantiator=f"{MODULE}.run"),
    "own class, activation is imported": _cli(activation=THING),
    "own class, activation is YAML": _cli(activation="{class_path: " + THING + "}"),
    "own class, activation is YAML in disguise": _cli(activation='{"class\\u005fpath": "' + THING + '"}'),
    "own class, registry is a class path": _cli(registry={"class_path": THING}),
    "own class, registry is YAML": _cli(registry="{class_path: " + THING + "}"),
    "own class, registry by a dotted key": _cli(**{"registry.class_path": THING}),
    "own class, registry is a text": _cli(registry=THING),
    "arguments beside the own ones": _hyper(loss={"class_path": THING}, optimizer=f"{MODULE}.run"),
    "arguments of an old release": _top(hparams={"activation": THING}, hyper_parameters={}),
    "arguments of an older release": _top(module_arguments={"activation": THING, "_instantiator": f"{MODULE}.run"}),
    "all arguments in one": _top(hparams_name="activation", hyper_parameters={"class_path": THING}),
    "record": _top(lit_gelu_activations={SITE: THING}),
    "record calls": _top(lit_gelu_activations=lambda marker: {SITE: f"torch.save(f={str(marker)!r})"}),
    "record of an annealed swap": _top(lit_gelu_activations={SITE: {"old": THING, "new": THING}}),
    "record whose site is a class": _top(lit_gelu_activations={f"class:{THING}": "gelu"}),
    "record whose site is an activation": _top(lit_gelu_activations={f"activation:{THING}": "gelu"}),
    "swap": _swaps(_swap_record(SITE, THING)),
    "swap at a class": _swaps(_swap_record(f"class:{THING}", "gelu")),
    "swap from an activation": _swaps(_swap_record(f"activation:{THING}", "gelu")),
    "state of a swap": _state_of_swap,
    "state of an optimizer": _optimizer_state,
    "pickle": _top(extra=Runs),
    "pickle in the arguments": _hyper(activation=Runs),
}


def write_checkpoint(good: dict, name: str, path: Path, marker: Path) -> Path:
    """Write a checkpoint with one of `CHECKPOINTS` in it."""
    checkpoint = copy.deepcopy(good)
    CHECKPOINTS[name](checkpoint, marker)
    torch.save(checkpoint, path)
    return path
