"""Swap activations that a module of your own calls as functions: ``python examples/own_module_swap.py``.

Seconds on a CPU; writes nothing.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation gives it
from torch import Tensor, nn

from lit_gelu.surgery import coverage, find_sites, swap


class MLP(nn.Module):
    """Two layers with a GELU between them, which is called as a function: there is no module to replace."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[..., width]`` for ``[..., width]``."""
        return self.narrow(F.gelu(self.wide(x)))


class Net(nn.Module):
    """A stem with a ReLU, two residual MLPs, and a sigmoid that gates the output."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(4, width), nn.ReLU())
        self.blocks = nn.ModuleList([MLP(width), MLP(width)])
        self.gate = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[batch, 8]`` for ``[batch, 4]``."""
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return x * torch.sigmoid(self.gate(x))


def main() -> None:
    """Find the calls, swap two of them, prove what runs, and take it back."""
    torch.manual_seed(0)
    net, sample = Net().eval(), torch.randn(3, 4)
    before = net(sample)

    print("Without a sample, modules alone are found:")
    for site in find_sites(net):
        print(f"  {site.name}: {site.spec}")
    print("With one, the calls of functions too, and from which line:")
    for site in find_sites(net, sample):
        print(f"  {site.name}: {site.spec} ({site.role}), {', '.join(call.where for call in site.calls or ())}")

    # Targets are patterns over these names, classes, or the activation that stands there now ("activation:gelu").
    # The sigmoid is a gate: patterns leave it alone unless they are its name in full (":sigmoid").
    report = swap(net, {"blocks.*:gelu": "swish(learnable=True)", "stem.1": "gelu_tanh"}, sample)
    print("Swapped:", report, sep="\n")

    # Each call has become a child module, so what is learned is among the parameters like everything else.
    print("New parameters:", [name for name, _ in net.named_parameters() if "_call" in name])

    # What really ran, counted at torch's operators: no exact GELU is left.
    ran = coverage(net, sample)
    print("Ran:", ran, sep="\n")
    print("Calls of exact GELU left:", ran.remaining("gelu(approximate='none')"))

    report.undo()
    print("As before after undo:", torch.equal(net(sample), before))


if __name__ == "__main__":
    main()
