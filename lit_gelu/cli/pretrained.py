"""``lit-gelu export`` and ``lit-gelu parity`` of folders as transformers, timm and sentence-transformers save them."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from lit_gelu import surgery
from lit_gelu.cli.input_sample import sample_for
from lit_gelu.cli.loading import load_checkpoint
from lit_gelu.cli.terminal import console_for_output
from lit_gelu.errors import ArgumentError, ExportError
from lit_gelu.export.pretrained import Pretrained, open_pretrained, pretrained, timm_model
from lit_gelu.files import write_atomically
from lit_gelu.sandbox import EXAMPLE

FILE = "model.onnx"
_IMAGE = {"height", "width"}


def opened(source: str, task: str | None, timm: str | None, swaps: Sequence[str]) -> Pretrained:
    """Return a folder's model, or timm's with the weights of a file, with activations swapped."""
    model = open_pretrained(source, task) if timm is None else pretrained(timm_model(timm, Path(source)))
    pairs = dict(word.partition("=")[::2] for word in swaps)
    if not all(pairs.values()):
        raise ArgumentError(
            f"--swap {' '.join(swaps)} is not accepted. Give WHERE=ACTIVATION, as in activation:gelu=gelu_tanh."
        )
    if pairs:
        surgery.swap(model.model, pairs, getattr(model.model, EXAMPLE, None))
    return model


def exported_model(
    ckpt: str,
    model: str | None,
    input_shape: Sequence[str],
    task: str | None,
    timm: str | None,
    swaps: Sequence[str],
    data: Any = None,
) -> nn.Module:
    """Return the model that a file was exported from: of a folder, or of a checkpoint."""
    if timm is not None or Path(ckpt).is_dir():
        return opened(ckpt, task, timm, swaps).model
    if task is not None or swaps:
        raise ArgumentError(f"--task and --swap are for folders and --timm, and {ckpt} is none. Leave them out.")
    return load_checkpoint(ckpt, model, sample_for(input_shape, data))


def export_pretrained(
    source: str,
    output: str | None,
    model: Pretrained,
    data: Any,
    again: Sequence[str],
    notes: Sequence[str],
    options: Mapping[str, Any],
    *,
    check: bool,
) -> int:
    """Write a folder with the file, its proof, what belongs beside it, and a model card."""
    from lit_gelu.export import check_parity, export_onnx, write_proof
    from lit_gelu.export.model_card import model_card

    name = Path(source).resolve().name
    folder = Path(f"{name}-onnx") if output is None else Path(output)
    path, notes = folder / FILE, [*model.notes, *notes]
    console = console_for_output(soft_wrap=True, highlight=False)
    options = {**options, "labels": options["labels"] or model.labels}
    shapes = options.pop("dynamic_shapes") or model.dynamic_shapes  # the user's go before
    try:
        report = export_onnx(model.model, path, dynamic_shapes=shapes, **options)
    except ExportError as error:
        if not _IMAGE & {size for axes in shapes.values() for size in axes.values()}:
            raise
        shapes = {name: axes for name, axes in shapes.items() if not _IMAGE & {*axes.values()}}
        report = export_onnx(model.model, path, dynamic_shapes=shapes, **options)
        notes.append(f"images are of the size in the file alone: {error}")
    console.print(str(report))
    parity = check_parity(model.model, path, data, strict=False) if check else None
    if parity is not None:
        write_proof(parity, path)
        console.print(f"  {parity.summary()}")
    for file in model.files:
        with write_atomically(folder / file.name) as temporary:
            temporary.write_bytes(file.read_bytes())
    command = shlex.join(["lit-gelu", "parity", FILE, *again])
    with write_atomically(folder / "README.md") as temporary:
        temporary.write_text(
            model_card(path, name, type(model.model).__name__, parity, command, notes), encoding="utf-8"
        )
    for note in notes:
        console.print(f"  {note}")
    return 0 if parity is None or parity.passed else 1
