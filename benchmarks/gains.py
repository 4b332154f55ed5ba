"""Print the numbers of ``docs/gains.md``: moments, gains, and what becomes of signals and gradients in deep nets.

    python benchmarks/gains.py moments
    python benchmarks/gains.py gains
    python benchmarks/gains.py depth
    python benchmarks/gains.py deviation
    python benchmarks/gains.py nets [--width 768 --seeds 15]

All but ``nets`` are the same on every machine; a test compares them with the page.
"""

import argparse
import math
import statistics
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

from lit_gelu.activations import create, gain, initialise_for_activations_
from lit_gelu.activations.analysis.depth import chi, edge_of_chaos, propagate, variance_slope
from lit_gelu.activations.analysis.gains import gains
from lit_gelu.activations.errors import ActivationArgumentError
from lit_gelu.activations.gaussian import gaussian_moments

SPECS = (
    *("gelu", "gelu_tanh", "gelu_sigmoid", "silu", "swish(beta=1.5)", "mish", "hard_swish", "relu"),
    *("leaky_relu(negative_slope=0.2)", "elu", "elu(alpha=0.5)", "selu", "softplus", "tanh"),
)
DEVIATIONS = (0.1, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 10.0)
LAYERS = 40
STARTS = (0.8, 1.0, 1.2)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def moments_table() -> str:
    """Return the expectations at N(0, 1) as a Markdown table."""
    rows = []
    for spec in SPECS:
        found = gaussian_moments(spec)
        fields = (found.value, found.value_squared, found.derivative_squared, found.abs_second_derivative, found.kink)
        rows.append([spec, *(f"{field.item() + 0.0:.8f}" for field in fields)])
    return _table(["", "E f", "E f²", "E f'²", "E abs(f'')", "in kinks"], rows).replace("-0.00000000", "0.00000000")


def gains_table() -> str:
    """Return the three gains at N(0, 1)."""
    rows = [[spec, *(f"{value:.6f}" for value in vars(gains(spec)).values())] for spec in SPECS]
    return _table(["", "forward", "variance", "backward"], rows)


def deviation_table() -> str:
    """Return the weight gain that keeps a standard deviation, for some of these."""
    rows = [
        [spec, *(f"{std * gain(spec, std=std):.4f}" for std in DEVIATIONS)] for spec in ("gelu", "silu", "tanh", "relu")
    ]
    return _table(["s", *map(str, DEVIATIONS)], rows)


def depth_table() -> str:
    """Return growth a layer at q = 1, at the forward gain and at the edge of chaos."""
    rows = []
    for spec in SPECS:
        forward = gain(spec) ** 2
        row = [spec, f"{chi(spec, 1.0, forward):.3f}", f"{variance_slope(spec, 1.0, forward):.3f}"]
        try:
            critical = edge_of_chaos(spec)
        except ActivationArgumentError:
            rows.append([*row, "none", "", ""])
            continue
        slope = variance_slope(spec, 1.0, critical.weight_variance)
        rows.append([*row, f"{critical.weight_variance:.6f}", f"{critical.bias_variance:.6f}", f"{slope:.3f}"])
    head = ["", "chi_1", "chi_q", "weight variance", "bias variance", "chi_q there"]
    return _table(head, rows)


def _final_square(width: int, seed: int, start: float, kind: str | None, scheme: str) -> float:
    """Return the mean square of the last pre-activations of one random net of GELU: geometric mean over 16 inputs."""
    generator = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for _ in range(LAYERS - 1):
        layers += [create("gelu"), nn.Linear(width, width)]
    net = nn.Sequential(nn.Linear(width, width), *layers)
    initialise_for_activations_(net, kind, scheme, generator=generator)
    inputs = torch.randn(16, width, generator=generator)
    inputs *= math.sqrt(start) / inputs.square().mean(1, keepdim=True).sqrt()
    with torch.inference_mode():
        return math.exp(net(inputs).double().square().mean(1).log().mean().item())


def nets_table(width: int, seeds: int) -> str:
    """Return the variance of the last of 40 layers: what the maps say, and what random nets have."""
    critical = edge_of_chaos("gelu")
    choices = (
        ("forward", None, "gain", gain("gelu") ** 2, 0.0),
        ("backward", "backward", "gain", gain("gelu", "backward") ** 2, 0.0),
        ("edge of chaos", None, "edge_of_chaos", critical.weight_variance, critical.bias_variance),
    )
    rows = []
    for name, kind, scheme, weight_variance, bias_variance in choices:
        for start in STARTS:
            theory = propagate("gelu", LAYERS - 1, start, weight_variance, bias_variance).q[-1]
            measured = sorted(_final_square(width, seed, start, kind, scheme) for seed in range(seeds))
            three = (measured[0], statistics.median(measured), measured[-1])
            rows.append([name, str(start), *(f"{value:.1g}" for value in (theory, *three))])
    return _table(["", "first q", "last q, maps", f"smallest of {seeds} nets", "median", "largest"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "moments": moments_table,
    "gains": gains_table,
    "deviation": deviation_table,
    "depth": depth_table,
}


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=[*TABLES, "nets"])
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--seeds", type=int, default=15)
    arguments = parser.parse_args()
    print(nets_table(arguments.width, arguments.seeds) if arguments.table == "nets" else TABLES[arguments.table]())


if __name__ == "__main__":
    main()
