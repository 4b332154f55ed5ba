"""``lit-gelu inspect``: say what an ONNX file is."""

from lit_gelu.cli.terminal import present


def inspect(file: str, *, json: str | None = None) -> int:
    """Say what an ONNX file is: opset, sizes, activations, how it was made and proved.

    in a shell:
      lit-gelu inspect model.onnx
      lit-gelu inspect elsewhere.onnx         of another exporter: its activations are recognised, fused ones too
      lit-gelu inspect model.onnx --json

    Args:
        file: an ONNX file, of lit-gelu or of another exporter
        json: print JSON, and nothing else on standard output; or write it into a file
    """
    from lit_gelu.export.inspection import inspect_onnx

    present(inspect_onnx(file), json=json)
    return 0
