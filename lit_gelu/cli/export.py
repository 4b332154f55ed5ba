"""``lit-gelu export``: write a checkpoint's model to an ONNX file, checked against PyTorch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from lit_gelu.cli.terminal import console_for_output
from lit_gelu.errors import ArgumentError
from lit_gelu.files import is_file


def export(
    source: str,
    *,
    output: str | None = None,
    model: str | None = None,
    input_shape: Sequence[str] = (),
    data: str | None = None,
    data_root: str | None = None,
    approximate: Literal["as_trained", "none", "exact", "tanh", "sigmoid"] = "as_trained",
    lowering: Literal["auto", "native", "primitives", "contrib"] = "auto",
    target: Literal["portable", "ort-cpu", "ort-cuda", "tensorrt"] = "portable",
    dtype: Literal["fp32", "fp16", "bf16", "float32", "float16", "bfloat16"] = "fp32",
    policy: Literal["strict", "fast"] = "strict",
    opset: int | None = None,
    keep_fp32: Sequence[str] = (),
    io_dtype: Literal["same", "fp32"] = "same",
    softmax: bool = False,
    labels: Sequence[str] = (),
    dynamic_shapes: dict[str, dict[int, str | None]] | None = None,
    preprocessing: str | None = None,
    task: str | None = None,
    timm: str | None = None,
    swap: Sequence[str] = (),
    check: bool = True,
) -> int:
    """Write a checkpoint's model, or that of a folder, to an ONNX file, checked against PyTorch.

    in a shell:
      lit-gelu export runs/digits_gelu/version_0/checkpoints/last.ckpt
      lit-gelu export last.ckpt -o model.onnx --approximate tanh --lowering contrib
      lit-gelu export last.ckpt --dtype fp16 --target ort-cuda --softmax --labels cat dog
      lit-gelu export last.ckpt --dynamic-shapes '{input_ids: {1: length}}'       of any length
      lit-gelu export last.ckpt --model my_module.MyNet --input-shape 3,32,32     your own, from the current folder
      lit-gelu export last.ckpt --model my_module.MyNet --data my_module.MyData   its input from its data's first batch
      lit-gelu export lit_gelu.tasks.MNISTClassifier -o untrained.onnx
      lit-gelu export last.ckpt --preprocessing MNISTData                         a file that takes raw pixels, uint8
      lit-gelu export distilbert/ --task text-classification     a folder of save_pretrained, to distilbert-onnx/
      lit-gelu export vit/ --swap activation:gelu=gelu_tanh --data my_module.Images     and says what that costs
      lit-gelu export weights.safetensors --timm convnext_tiny

    Args:
        source: a Lightning checkpoint, the dotted path of a LightningModule class, a folder as transformers, timm or
            sentence-transformers save it, or with --timm a file of weights
        output: the file to write; default: the checkpoint's name with .onnx. Of a folder, the folder to write; default:
            its name with -onnx, in the current folder
        model: the model's class, if the checkpoint does not record it: my_module.MyNet, also from the current folder
        input_shape: for a model without example_input_array: the sizes of one row of each input, without the batch;
            1,28,28, or by name input_ids=16:int64 mask=16:int64
        data: a data module, such as MNISTData: the check runs on its test data too, and its first batch is the input of
            a model without example_input_array
        data_root: the folder with the files of --preprocessing and --data
        approximate: form of every GELU
        lowering: operators of the activations
        target: the runtime it is for
        dtype: of weights and activations
        policy: as accurate as PyTorch, or the fastest known
        opset: version of the standard operators
        keep_fp32: operators, or patterns over names of modules, that stay in float32
        io_dtype: of inputs and outputs of an fp16 or bf16 file
        softmax: whether the file ends with a softmax
        labels: names of the classes, in their order
        dynamic_shapes: names of open sizes by input and axis
        preprocessing: a data module, such as MNISTData, whose preprocessing becomes a part of the file: it takes raw
            pixels
        task: what the model of a folder is for: feature-extraction, text-classification, token-classification,
            image-classification, object-detection, asr-encoder, image-text; default: as it was saved
        timm: an architecture of timm, whose weights are the source
        swap: activations of a folder's model to exchange first, WHERE=ACTIVATION
        check: compare each file with PyTorch
    """
    from lit_gelu.cli.input_sample import evaluation_data, input_sample, require_input, sample_for
    from lit_gelu.cli.loading import load_data, load_model, load_optional_data
    from lit_gelu.export import check_parity, export_onnx, write_proof

    options: dict[str, Any] = {
        "approximate": approximate,
        "lowering": lowering,
        "target": target,
        "dtype": dtype,
        "policy": policy,
        "opset": opset,
        "keep_fp32": keep_fp32,
        "io_dtype": io_dtype,
        "softmax": softmax,
        "labels": labels,
        "dynamic_shapes": dynamic_shapes,
    }
    if timm is not None or Path(source).is_dir():
        from lit_gelu.audit import audit
        from lit_gelu.cli.pretrained import export_pretrained, opened

        test_data, folder_model = evaluation_data(load_optional_data(data, data_root)), opened(source, task, timm, swap)
        again = ["--ckpt", source, *(["--task", task] if task else []), *(["--timm", timm] if timm else [])]
        notes: list[str] = []
        if swap:
            again += ["--swap", *swap]
            costs = audit(opened(source, task, timm, ()).model, folder_model.model, test_data, strict=False).costs
            notes = [f"swapped: {cost}" for cost in costs]
        return export_pretrained(source, output, folder_model, test_data, again, notes, options, check=check)
    is_path = source.endswith(".ckpt") or is_file(source)
    default = Path(source).with_suffix(".onnx") if is_path else Path(f"{source.rpartition('.')[2]}.onnx")
    path = default if output is None else Path(output)
    if path.suffix != ".onnx":
        raise ArgumentError(f"--output {str(path)!r} must end in .onnx.")
    raw: Any = None
    if preprocessing is not None:
        source_of_pixels: Any = load_data(preprocessing, data_root)
        if not callable(getattr(source_of_pixels, "preprocessing", None)):
            raise ArgumentError(f"{preprocessing} has no method preprocessing(), which makes inputs of raw pixels.")
        raw = source_of_pixels.preprocessing()
    module = load_optional_data(data, data_root if raw is None or data is not None else None)
    shapes = input_shape if raw is None else []  # of raw pixels, which the model does not take
    net = load_model(source, model, sample_for(shapes, module))
    # A data module's batches are behind its preprocessing, and then a sample is raw pixels.
    sample = input_sample(input_shape, net, module if raw is None else None)
    if raw is None:
        require_input(sample, net)
    console = console_for_output(soft_wrap=True, highlight=False)
    report = export_onnx(net, path, sample, preprocessing=raw, **options)
    console.print(str(report))
    if not check:
        return 0
    parity = check_parity(net, path, evaluation_data(module), sample, strict=False, preprocessing=raw)
    write_proof(parity, path, [])
    console.print(f"  {parity.summary()}")
    return 0 if parity.passed else 1
