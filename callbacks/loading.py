"""Modules with the activations and weights that a checkpoint was saved with."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from lightning.pytorch import LightningModule

from lit_gelu.activations import ActivationRegistry
from lit_gelu.callbacks.checkpoint_file import loading, read_checkpoint
from lit_gelu.callbacks.swap.run import ACTIVATIONS_KEY, Checkpoint, registry_for
from lit_gelu.callbacks.trainer import as_batch
from lit_gelu.errors import CheckpointError, message_of
from lit_gelu.export.copying import evaluation_copy
from lit_gelu.surgery.activation_record import restore_activations
from lit_gelu.surgery.swap import is_mark, without_marks

Module = TypeVar("Module", bound=LightningModule)


def load_from_checkpoint(
    module_class: type[Module],
    checkpoint_path: str | Path,
    map_location: Any = None,
    *,
    registry: ActivationRegistry | None = None,
    input_sample: Any = None,
    **arguments: Any,
) -> Module:
    """Load a checkpoint in which activations may have been swapped, of any `LightningModule`.

    ``module_class.load_from_checkpoint`` builds the module as its constructor does, so that the weights may fit other
    activations than they were trained with. Here those that the checkpoint names are put in before the weights are
    loaded. (The modules of `lit_gelu.tasks` do so by themselves.)

    The file cannot run programs: what is not plain data is refused (unless ``weights_only=False`` is given), and while
    the module is built, `lit_gelu.activations.create` resolves registered names only. Arguments that are given here may
    name what they like. The class's ``on_load_checkpoint`` is wrapped meanwhile: do not load it in two threads at once.

    Args:
        module_class: The module's class.
        checkpoint_path: The file.
        map_location: As ``torch.load``.
        registry: Where the activations are looked up; ``None`` means the default registry.
        input_sample: What ``forward`` takes, if calls of functions were swapped, or a function that returns it for the
            module; ``None`` means the module's ``example_input_array``.
        **arguments: What else ``LightningModule.load_from_checkpoint`` takes: ``strict``, ``weights_only``,
            ``hparams_file``, and arguments of the constructor.

    Returns:
        The module, on the checkpoint's device or ``map_location``.

    Raises:
        CheckpointError: If it is no checkpoint, is damaged, or holds more than plain data.
        CheckpointError: If the checkpoint does not name its activations, or has them in other places.
        StoredSpecError: If it names an activation that is not registered.
    """

    def rebuild(module: LightningModule, checkpoint: Checkpoint) -> None:
        if ACTIVATIONS_KEY not in checkpoint:
            swapped = [key.partition("__needs_")[0] for key in checkpoint["state_dict"] if is_mark(key)]
            how = (
                f"lit_gelu.surgery.swap was called in its model ({', '.join(swapped)}): make the same swaps in this "
                "one, and load the 'state_dict' that torch.load(path, weights_only=True) gives."
                if swapped
                else f"Load it with {module_class.__name__}.load_from_checkpoint, with the arguments of the "
                "constructor that it does not hold, above all the activation."
            )
            raise CheckpointError(
                f"{checkpoint_path} does not name its activations: it was saved without ActivationSwap in the "
                f"Trainer. {how}"
            )
        _restore(module, checkpoint, registry, input_sample)

    arguments = {**arguments, "weights_only": arguments.get("weights_only") is not False}
    with _before_loading(module_class, rebuild), loading(module_class, checkpoint_path, arguments):
        loaded: Module = module_class.load_from_checkpoint(checkpoint_path, map_location=map_location, **arguments)
    return loaded


@contextmanager
def _before_loading(module_class: type[LightningModule], rebuild: Any) -> Iterator[None]:
    """Call a function before ``on_load_checkpoint`` of a class or a subclass, which LightningCLI may build."""
    # Not a subclass with another hook instead: a class path in the checkpoint must name a subclass of the class given.
    done: set[int] = set()
    wrapped = list(dict.fromkeys([module_class, *_subclasses(module_class)]))
    own_hooks = [(cls, vars(cls).get("on_load_checkpoint")) for cls in wrapped]

    def wrapper(original: Any) -> Any:
        def on_load_checkpoint(self: LightningModule, checkpoint: Checkpoint) -> None:
            if id(self) not in done:  # a subclass may call its parent's
                done.add(id(self))
                rebuild(self, checkpoint)
            original(self, checkpoint)

        return on_load_checkpoint

    for cls, original in [(cls, cls.on_load_checkpoint) for cls in wrapped]:
        cls.on_load_checkpoint = wrapper(original)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for cls, hook in own_hooks:
            del cls.on_load_checkpoint
            if hook is not None:
                cls.on_load_checkpoint = hook  # type: ignore[method-assign]


def _subclasses(cls: type[LightningModule]) -> Iterator[type[LightningModule]]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def module_of_checkpoint(
    pl_module: LightningModule, path: str, registry: ActivationRegistry | None, input_sample: Any
) -> LightningModule:
    """Return a copy of a run's module, on the CPU for evaluation, with the activations and weights of a checkpoint."""
    # A copy of the module at hand, and not a new one of its class, which needs the constructor's arguments: of a class
    # that does not save them as hyperparameters, a new module may have other activations and the same weights, and
    # nothing would show it.
    checkpoint = read_checkpoint(path)
    twin: Any = evaluation_copy(pl_module)
    try:
        _restore(twin, checkpoint, registry, input_sample)
        twin.on_load_checkpoint(checkpoint)
        twin.load_state_dict(checkpoint["state_dict"], strict=pl_module.strict_loading)
    except (CheckpointError, RuntimeError) as error:
        raise CheckpointError(
            f"The best checkpoint does not fit the module as it is now ({message_of(error)}). Was the module's "
            "structure changed during training? ActivationSwap records what it does. Otherwise load the checkpoint "
            "with lit_gelu.callbacks.load_from_checkpoint, and export that module."
        ) from error
    copy: LightningModule = evaluation_copy(twin)  # type: ignore[assignment]  # activations that were put in are new
    return copy


def _restore(
    module: LightningModule, checkpoint: Checkpoint, registry: ActivationRegistry | None, input_sample: Any
) -> None:
    """Give a module the activations of a checkpoint, if it names any."""

    def sample_for(model: LightningModule) -> Any:
        return as_batch(input_sample(model) if callable(input_sample) else input_sample, model)

    if ACTIVATIONS_KEY in checkpoint:
        restore_activations(module, checkpoint[ACTIVATIONS_KEY], registry_for(module, [registry]), sample_for)
        without_marks(checkpoint.get("state_dict", {}))
