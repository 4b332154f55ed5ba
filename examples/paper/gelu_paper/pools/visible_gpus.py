"""Which GPUs worker processes see: what CUDA_VISIBLE_DEVICES says in each of them."""

from collections.abc import Sequence

from gelu_paper.errors import PaperArgumentError

VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible_gpus(given: Sequence[str], count: int, variable: str | None) -> tuple[str, ...]:
    """Return the variable's text for each GPU that was asked for, of ``count`` that this process sees as 0 and up."""
    # Where the variable is set already (by SLURM, for one), GPU 0 is the first that it names: numbers, UUIDs or MIG's
    # names are handed on as they stand. CUDA ends the list at the first name that it does not know, so that count may
    # be less than the list's length.
    if count == 0:
        unless = "" if variable is None else f" ({VARIABLE} is {variable!r})"
        raise PaperArgumentError(
            f"--devices {' '.join(given)} given, but torch sees no GPU here{unless}. Leave --devices out, or run where "
            "there is one; lit-gelu doctor says what torch sees."
        )
    names = [str(number) for number in range(count)] if variable is None else _names(variable)[:count]
    if list(given) == ["all"]:
        return tuple(names)
    numbers = [int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1 for text in given]
    if not numbers or len(set(numbers)) < len(numbers) or not all(0 <= number < len(names) for number in numbers):
        accepted = " ".join(map(str, range(len(names))))
        raise PaperArgumentError(
            f"--devices {' '.join(given)} given; accepted: all, or some of {accepted}, each once, as torch numbers the "
            "GPUs that it sees. More --workers than devices share them."
        )
    return tuple(names[number] for number in numbers)


def _names(variable: str) -> list[str]:
    return [name.strip() for name in variable.split(",")]
