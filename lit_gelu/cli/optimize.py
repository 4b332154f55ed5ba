"""``lit-gelu optimize``: apply the fusions of onnxruntime's offline optimiser, and prove the result."""

from collections.abc import Sequence
from pathlib import Path

from lit_gelu.cli.terminal import console_for_output


def optimize(
    file: str,
    *,
    ckpt: str,
    output: str | None = None,
    model_type: str = "bert",
    model: str | None = None,
    input_shape: Sequence[str] = (),
    task: str | None = None,
    timm: str | None = None,
    swap: Sequence[str] = (),
) -> int:
    """Apply the fusions of onnxruntime's offline optimiser to a file, and prove the result.

    exit code: 0 if the new file computes what the PyTorch model computes, 1 if not, 2 for a mistake in the arguments

    in a shell:
      lit-gelu optimize distilbert-onnx/model.onnx --ckpt distilbert/ --task text-classification
      lit-gelu optimize vit.onnx --ckpt vit/ --model-type vit -o vit_fused.onnx

    Args:
        file: an ONNX file of lit-gelu
        ckpt: the Lightning checkpoint or the folder that it was exported from, or with --timm the file of weights
        output: the file to write; default: the file's name with .optimized.onnx
        model_type: whose patterns are looked for, as onnxruntime calls them: bert, vit, clip, gpt2, t5, ...
        model: the model's class, if the checkpoint does not record it: my_module.MyNet, also from the current folder
        input_shape: for a model without example_input_array: the sizes of one row of each input, without the batch;
            1,28,28, or by name input_ids=16:int64 mask=16:int64
        task: what a folder's model is for, as lit-gelu export takes it
        timm: an architecture of timm
        swap: activations of a folder's model to exchange first, WHERE=ACTIVATION
    """
    from lit_gelu.cli.input_sample import input_sample
    from lit_gelu.cli.pretrained import exported_model
    from lit_gelu.export import check_parity
    from lit_gelu.export.optimization import optimize_onnx

    path = Path(file).with_suffix(".optimized.onnx") if output is None else Path(output)
    net = exported_model(ckpt, model, input_shape, task, timm, swap)
    console = console_for_output(soft_wrap=True, highlight=False)
    console.print(str(optimize_onnx(file, path, model_type)))
    report = check_parity(net, path, None, input_sample(input_shape, net, None), strict=False)
    console.print(f"  {report.summary()}")
    return 0 if report.passed else 1
