"""``lit-gelu vectors``: write correctly rounded values of an activation, or score a function by them."""

import sys
from pathlib import Path

from lit_gelu.audit.adapters import SUFFIXES, open_runtime_file
from lit_gelu.audit.enclosures import DEFINITIONS
from lit_gelu.audit.score import score_vectors
from lit_gelu.audit.vectors import write_vectors
from lit_gelu.cli.loading import named_object
from lit_gelu.cli.terminal import console_for_output, write_json, write_text
from lit_gelu.files import require_writable, write_atomically


def vectors() -> int:
    """List the activations that golden vectors can be written of.

    in a shell:
      lit-gelu vectors
    """
    write_text("\n".join(DEFINITIONS), "-")
    return 0


def write(spec: str, *, dtype: str, output: str) -> int:
    """Write f, f' and f'' of an activation, correctly rounded, at all 16-bit inputs or 200,000 of float32.

    It takes a minute in 16 bits and a few in float32. docs/vectors.md describes the files.

    in a shell:
      lit-gelu vectors write gelu --dtype bf16 -o vectors
      lit-gelu vectors write "swish(beta=1.702)" --dtype fp32 -o vectors

    Args:
        spec: the activation
        dtype: float32, float16 or bfloat16; or fp32, fp16, bf16
        output: the folder for a .npz and a .json file
    """
    result = write_vectors(spec, dtype, output)
    sys.stderr.write(f"wrote {Path(output, result.name)}.npz and .json: {len(result.x):,} inputs\n")
    return 0


def score(
    target: str, *, vectors: str, order: int = 0, ulp: float = 1.0, json: str | None = None, plot: str | None = None
) -> int:
    """Count how far a function's values are from correctly rounded ones.

    exit code: 0 if every value is within --ulp, 1 if one is not, 2 for a mistake in the arguments

    in a shell:
      lit-gelu vectors score torch.nn.functional:gelu --vectors vectors/gelu_bfloat16.npz
      lit-gelu vectors score my_kernels:gelu --vectors vectors/gelu_float16.npz --ulp 0 --plot errors.png
      lit-gelu vectors score gelu.onnx --vectors vectors/gelu_float32.npz --json

    Args:
        target: package.module:function, also from the current folder, or a file with one input and one output
        vectors: a .npz file of lit-gelu vectors write
        order: which derivative of the activation the function is, 0 to 2
        ulp: how far off a value may be, in numbers of the dtype; 0 for correct rounding
        json: print JSON, and nothing else on standard output; or write it into a file
        plot: where to draw the errors, as PNG, PDF or SVG
    """
    if plot is not None:
        require_writable(plot)
    is_file = Path(target).suffix in SUFFIXES
    function = open_runtime_file(target).function() if is_file else named_object(target)
    result = score_vectors(function, vectors, order=order, limit=ulp)
    if json != "-":
        console_for_output(highlight=False, soft_wrap=True).print(str(result))
    if json is not None:
        write_json(result.to_dict(), json)
    if plot is not None:
        figure = result.plot()
        with write_atomically(plot) as temporary:
            figure.savefig(temporary, dpi=150)
    return 0 if result.passed else 1
