"""Print the numbers of ``docs/gains.md``: moments and gains.

    python benchmarks/gains.py gains
    python benchmarks/gains.py deviation

They are the same on every machine; a test compares them with the page.
"""

import argparse
from collections.abc import Callable, Iterable, Sequence

from lit_gelu.activations import gain
from lit_gelu.activations.gaussian import gains, gaussian_moments

SPECS = (
    *("gelu", "gelu_tanh", "gelu_sigmoid", "silu", "swish(beta=1.5)", "mish", "hard_swish", "relu"),
    *("leaky_relu(negative_slope=0.2)", "elu", "elu(alpha=0.5)", "selu", "softplus", "tanh"),
)
DEVIATIONS = (0.1, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 10.0)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def gains_table() -> str:
    """Return the expectations at N(0, 1) and the three gains as a Markdown table."""
    rows = []
    for spec in SPECS:
        means = gaussian_moments(spec)
        moments = [f"{x.item() + 0.0:.8f}" for x in (means.value, means.value_squared, means.derivative_squared)]
        rows.append([spec, *moments, *(f"{value:.6f}" for value in vars(gains(spec)).values())])
    head = ["", "E f", "E f²", "E f'²", "forward", "variance", "backward"]
    return _table(head, rows).replace("-0.00000000", "0.00000000")


def deviation_table() -> str:
    """Return the weight gain that keeps a standard deviation, for some of these."""
    rows = [[spec, *(f"{std * gain(spec, std=std):.4f}" for std in DEVIATIONS)] for spec in ("gelu", "silu", "tanh")]
    return _table(["s", *map(str, DEVIATIONS)], rows)


TABLES: dict[str, Callable[[], str]] = {
    "gains": gains_table,
    "deviation": deviation_table,
}


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=list(TABLES))
    print(TABLES[parser.parse_args().table]())


if __name__ == "__main__":
    main()
