"""LightningModules whose training step does all that a probe must undo, and the full Hessian as an oracle."""

import random

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torchmetrics.classification import MulticlassAccuracy

FEATURES, CLASSES = 4, 3
NUMPY = np.random.mtrand._rand  # the global generator


class Untidy(LightningModule):
    """Dropout, batch norm, metrics, noise of every generator, counters, lists: all changes with every step."""

    def __init__(self, activation: type[nn.Module] = nn.GELU, dropout: float = 0.5) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(
            nn.Linear(FEATURES, 5), activation(), nn.BatchNorm1d(5), nn.Dropout(dropout), nn.Linear(5, CLASSES)
        )
        self.accuracy = MulticlassAccuracy(CLASSES)
        self.in_list = [MulticlassAccuracy(CLASSES)]
        self.losses: list[float] = []
        self.counts = {"calls": 0}
        self.calls = 0
        self.average = torch.zeros(())
        self.generator = torch.Generator().manual_seed(5)
        self.numpy_generator = np.random.default_rng(5)
        self.noise = 0.1

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        self.calls += 1
        self.counts["calls"] += 1
        self.new_attribute = x
        noise = random.random() + NUMPY.random() + torch.rand(()) + torch.rand((), generator=self.generator)
        noise = noise + self.numpy_generator.random()
        loss = nn.functional.cross_entropy(self(x) * (1 + self.noise * noise), y)
        self.accuracy(self(x), y)
        self.in_list[0].update(self(x), y)
        self.average.mul_(0.9).add_(loss.detach())
        self.losses.append(loss.item())
        self.log("loss", loss)
        self.log_dict({"accuracy": self.accuracy})
        return {"loss": loss, "other": 1}

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def batch_of(examples: int = 12, seed: int = 0, dtype: torch.dtype = torch.float32):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(examples, FEATURES, generator=generator).to(dtype)
    return x, torch.randint(CLASSES, (examples,), generator=generator)


def full_hessian(module: nn.Module, loss_of_outputs, x: torch.Tensor) -> torch.Tensor:
    """The Hessian of ``loss_of_outputs(module(x))`` by the parameters that are trained, row by row."""
    trained = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
    shapes = [p.shape for p in trained.values()]

    def loss(flat):
        pieces = flat.split([shape.numel() for shape in shapes])
        values = {name: piece.view(shape) for name, piece, shape in zip(trained, pieces, shapes, strict=True)}
        return loss_of_outputs(torch.func.functional_call(module, values, (x,)))

    with sdpa_kernel(SDPBackend.MATH):
        return torch.autograd.functional.hessian(loss, torch.cat([p.flatten() for p in trained.values()]))


def trace_of_everything(module: Untidy):
    """All that a probe could change: bitwise comparable."""
    gradients = [None if p.grad is None else p.grad.clone() for p in module.parameters()]
    metrics = [getattr(m, n).clone() for m in (module.accuracy, module.in_list[0]) for n in ("tp", "fp", "fn", "tn")]
    states = [torch.get_rng_state(), module.generator.get_state(), torch.tensor(NUMPY.get_state()[1].tolist())]
    plain = {
        "python": random.getstate(),
        "numpy": module.numpy_generator.bit_generator.state,
        "flags": [part.training for part in module.modules()],
        "losses": list(module.losses),
        "counts": dict(module.counts),
        "calls": module.calls,
        "names": sorted(module.__dict__),
        "updates": [module.accuracy.update_count, module.in_list[0].update_count],
        "identities": [id(t) for t in (*module.buffers(), *module.parameters(), module.average, module.accuracy.tp)],
        "grad_identities": [id(p.grad) for p in module.parameters()],
        "autocast": torch.is_autocast_enabled("cpu"),
        "grad": torch.is_grad_enabled(),
        "kernels": (torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.mem_efficient_sdp_enabled()),
    }
    values = [t.clone() for t in module.state_dict().values()]
    return plain, [*gradients, *metrics, *states, *values, module.average.clone()]


def same(before, after) -> bool:
    (plain, tensors), (other_plain, other_tensors) = before, after
    pairs = zip(tensors, other_tensors, strict=True)
    return plain == other_plain and all((a is None and b is None) or torch.equal(a, b) for a, b in pairs)
