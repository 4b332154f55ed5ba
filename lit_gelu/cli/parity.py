"""``lit-gelu parity``: prove that an ONNX file computes what the PyTorch model computes."""

from collections.abc import Sequence

from lit_gelu.cli.terminal import present


def parity(
    file: str,
    *,
    ckpt: str,
    model: str | None = None,
    input_shape: Sequence[str] = (),
    data: str | None = None,
    data_root: str | None = None,
    task: str | None = None,
    timm: str | None = None,
    swap: Sequence[str] = (),
    tolerance: float = 1e-5,
    providers: Sequence[str] = (),
    json: str | None = None,
    markdown: str | None = None,
    html: str | None = None,
) -> int:
    """Prove that an ONNX file computes what the PyTorch model computes.

    exit code: 0 if every comparison passed, 1 if one failed, 2 for a mistake in the arguments or a file

    in a shell:
      lit-gelu parity model.onnx --ckpt last.ckpt
      lit-gelu parity model.onnx --ckpt last.ckpt --data DigitsData --json parity.json
      lit-gelu parity model.onnx --ckpt last.ckpt --data MNISTData --data-root data --html parity.html
      lit-gelu parity elsewhere.onnx --ckpt last.ckpt     a file of torch.onnx, or what onnxruntime made of one
      lit-gelu parity raw.onnx --ckpt last.ckpt --data MNISTData     its preprocessing too, if the file takes raw pixels
      lit-gelu parity distilbert-onnx/model.onnx --ckpt distilbert/ --task text-classification
      lit-gelu parity model.onnx --ckpt last.ckpt --model my_module.MyNet --input-shape 3,32,32

    Args:
        file: an ONNX file, of lit-gelu or of another exporter
        ckpt: the Lightning checkpoint or the folder that it was exported from, or with --timm the file of weights
        model: the model's class, if the checkpoint does not record it: my_module.MyNet, also from the current folder
        input_shape: for a model without example_input_array: the sizes of one row of each input, without the batch;
            1,28,28, or by name input_ids=16:int64 mask=16:int64
        data: a data module, such as DigitsData or MNISTData, whose test data are compared too
        data_root: the folder with the files of the data module
        task: what a folder's model is for, as lit-gelu export takes it
        timm: an architecture of timm
        swap: activations of a folder's model to exchange first, WHERE=ACTIVATION
        tolerance: what float32 arithmetic may cost, in units of the largest output
        providers: onnxruntime's execution providers; default: CUDA, or the CPU
        json: print JSON, and nothing else on standard output; or write it into a file
        markdown: where to write the report as Markdown
        html: where to write the report as a page
    """
    from lit_gelu.cli.input_sample import evaluation_data, input_sample
    from lit_gelu.cli.loading import load_optional_data
    from lit_gelu.cli.pretrained import exported_model
    from lit_gelu.export import check_parity
    from lit_gelu.export.metadata import recorded_metadata

    data_module = load_optional_data(data, data_root)
    net = exported_model(ckpt, model, input_shape, task, timm, swap, data_module)
    about = recorded_metadata(file)
    # A data module's batches are preprocessed already: they are no sample of a file that takes raw pixels.
    sample = input_sample(input_shape, net, None if about is not None and about.preprocessing else data_module)
    tests, runtimes = evaluation_data(data_module), list(providers) or None
    report = check_parity(net, file, tests, sample, tolerance=tolerance, providers=runtimes, strict=False)
    present(report, json=json, markdown=markdown, html=html)
    return 0 if report.passed else 1
