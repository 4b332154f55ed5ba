"""``lit-gelu triton``: put an ONNX file into a model repository of Triton Inference Server."""

from typing import Literal

from lit_gelu.cli.terminal import console_for_output


def triton(
    file: str,
    repository: str,
    *,
    device: Literal["cpu", "gpu"],
    name: str | None = None,
    version: int = 1,
    max_batch_size: int | None = None,
    overwrite: bool = False,
) -> int:
    """Lay an ONNX file out as a model repository of Triton Inference Server.

    What waits, warms up and runs at once is written into its config.pbtxt, or given in Python.

    in a shell:
      lit-gelu triton model.onnx repository --device gpu
      lit-gelu triton model.onnx repository --device gpu --name digits --version 2
      lit-gelu triton model.onnx repository --device cpu --max-batch-size 64
      tritonserver --model-repository=repository                                       then serves it

    Args:
        file: an ONNX file
        repository: the repository's folder; it is made if it is not there
        device: where the server runs it
        name: the model's name; default: the file's
        version: the model's version, from 1 on
        max_batch_size: in rows; default: 128 if the file has a batch, else 0
        overwrite: replace a version and a configuration that are there
    """
    from lit_gelu.export.serving import write_triton_repository

    written = write_triton_repository(
        file,
        repository,
        device=device,
        name=name,
        version=version,
        max_batch_size=max_batch_size,
        overwrite=overwrite,
    )
    console_for_output(soft_wrap=True, highlight=False, markup=False).print(str(written))
    return 0
