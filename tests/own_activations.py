"""Three activation classes as users write them: what becomes of the constructor's argument is different in each."""

import torch
from torch import nn


class Learned(nn.Module):
    """Softplus-like gate with a learned slope: ``x sigmoid(a x)``; the argument is where ``a`` begins."""

    def __init__(self, a: float = 1.0) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(float(a)))

    def forward(self, x):
        return x * torch.sigmoid(self.a * x)


class Running(nn.Module):
    """``x sigmoid(a x)``; ``a`` is a buffer that moves in training, as running statistics do."""

    def __init__(self, a: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("slope", torch.tensor(float(a)))

    def forward(self, x):
        if self.training:
            self.slope = 0.99 * self.slope + 0.01 * x.detach().abs().mean()
        return x * torch.sigmoid(self.slope * x)


class Renamed(nn.Module):
    """``x sigmoid(a x)``; no attribute is called as the argument."""

    def __init__(self, a: float = 1.0) -> None:
        super().__init__()
        self._negative = -float(a)

    def forward(self, x):
        return x / (1 + torch.exp(self._negative * x))


OWN = {"own_learned": Learned, "own_running": Running, "own_renamed": Renamed}
