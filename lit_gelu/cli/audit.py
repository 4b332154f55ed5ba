"""``lit-gelu audit``: do two artefacts compute the same activations?"""

from collections.abc import Sequence
from typing import Any

from lit_gelu.cli.terminal import present
from lit_gelu.files import is_file, is_folder


def audit(
    reference: str,
    candidate: str,
    *,
    data: str | None = None,
    data_root: str | None = None,
    input_shape: Sequence[str] = (),
    model: str | None = None,
    json: str | None = None,
    html: str | None = None,
) -> int:
    """Say whether two artefacts compute the same activations, by their values, and what a mismatch costs.

    each is an ONNX file of any exporter, a folder as transformers, timm or open_clip save it, a Lightning checkpoint, a
    module or function as package.module:name, or the name of an activation

    exit code: 0 if all are the same, 1 if one differs, 2 if that cannot be told, and for a mistake in the arguments

    in a shell:
      lit-gelu audit bert-base/ bert.onnx
      lit-gelu audit last.ckpt model.onnx --data DigitsData --json audit.json
      lit-gelu audit gelu_tanh my_kernels:fast_gelu
      lit-gelu audit vit/ my_port:net --input-shape 3,224,224

    Args:
        reference: what is right
        candidate: what is asked about
        data: a data module, such as DigitsData, on which the cost of a mismatch is measured
        data_root: the folder with the files of the data module
        input_shape: what modules are run with, if they do not say it: the sizes of one row of each input, without the
            batch; 3,224,224, or by name input_ids=16:int64
        model: the class of a checkpoint's model, if that does not record it: my_module.MyNet
        json: print JSON, and nothing else on standard output; or write it into a file
        html: where to write the report as a page
    """
    from lit_gelu.audit import audit as audit_artefacts
    from lit_gelu.cli.input_sample import inputs_of_data, random_sample
    from lit_gelu.cli.loading import load_optional_data

    module = load_optional_data(data, data_root)
    first, second = (_artefact(word, model) for word in (reference, candidate))
    sample = random_sample(input_shape) if input_shape else None
    if sample is None and module is not None and callable(getattr(first, "forward", None)):
        sample = inputs_of_data(module, first)
    report = audit_artefacts(first, second, module, sample, strict=False)
    present(report, json=json, html=html)
    return report.exit_code


def _artefact(word: str, model: str | None) -> Any:
    """Return what a word on the command line stands for; what a user names there may be imported."""
    from lit_gelu.cli.loading import load_checkpoint, named_object

    if word.endswith(".ckpt"):
        return load_checkpoint(word, model)
    is_path = ":" not in word or is_file(word) or is_folder(word)  # such as C:\models\net.onnx
    return word if is_path else named_object(word)
