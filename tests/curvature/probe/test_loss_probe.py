"""A probe leaves a live module as it was found, and is the same function at every call."""

import pytest
import torch
from lightning.pytorch import LightningModule
from probe_nets import Untidy, batch_of, same, trace_of_everything
from torch import nn

from lit_gelu.curvature.loss import hessian_operator
from lit_gelu.curvature.probe.loss_probe import LossProbe
from lit_gelu.errors import ArgumentError, UnsupportedRunError
from lit_gelu.sandbox import in_side_pass


def trained_a_little() -> Untidy:
    """With gradients, running means and metric states that are not the initial ones, and one part frozen in eval."""
    module = Untidy()
    module.log = lambda *arguments, **options: None  # there is no Trainer here
    module.log_dict = lambda *arguments, **options: None
    module.training_step(batch_of(seed=3), 0)["loss"].backward()
    module.net[4].eval()
    return module


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_d1_everything_is_as_it_was_found(mode):
    module = trained_a_little()
    before = trace_of_everything(module)
    with LossProbe(module, [batch_of(), batch_of(5, seed=1)], mode=mode) as probe:
        for _ in range(3):
            with hessian_operator(probe.closures, probe.parameters, samples=probe.samples) as hessian:
                assert hessian(torch.ones(hessian.size)).abs().sum() > 0
        assert [part.training for part in module.net] == [mode == "train"] * 4 + [False]
        assert in_side_pass()
    assert same(before, trace_of_everything(module))
    assert not in_side_pass()


@pytest.mark.parametrize("where", ["forward", "caller"])
def test_everything_is_as_it_was_found_after_an_exception(where):
    module = trained_a_little()
    before = trace_of_everything(module)

    def fail(*arguments):
        raise ArithmeticError("in the middle")

    handle = module.net[4].register_forward_hook(fail) if where == "forward" else None

    def use():
        with LossProbe(module, [batch_of()], mode="eval") as probe:
            probe.closures[0]()
            fail()

    with pytest.raises(ArithmeticError):
        use()
    if handle is not None:
        handle.remove()
    assert same(before, trace_of_everything(module))


def test_d17_dropout_is_replayed_so_that_the_matrix_is_symmetric():
    module = Untidy().double()
    batch = batch_of(dtype=torch.float64)
    module.noise = 1.0
    with LossProbe(module, [batch]) as probe:
        losses = {probe.closures[0]().item() for _ in range(3)}
        with hessian_operator(probe.closures, probe.parameters) as hessian:
            a, b = torch.randn(2, hessian.size, dtype=torch.float64)
            assert (a @ hessian(b)).item() == pytest.approx((b @ hessian(a)).item(), rel=1e-10)
    assert len(losses) == 1


def test_autocast_is_off_unless_asked_for():
    class Records(Untidy):
        def curvature_loss(self, batch):
            self.dtypes.append(self.net[0](batch[0]).dtype)
            return self(batch[0]).square().mean()

    module = Records()
    seen = module.__dict__.setdefault("dtypes", [])
    kept = []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for precision in (None, lambda: torch.autocast("cpu", dtype=torch.bfloat16)):
            with LossProbe(module, [batch_of()], precision=precision) as probe:
                probe.closures[0]()
                kept += seen
        assert torch.is_autocast_enabled("cpu")
    assert kept == [torch.float32, torch.bfloat16]


def test_curvature_loss_comes_before_training_step():
    class WithHook(Untidy):
        automatic_optimization = False

        def curvature_loss(self, batch):
            return self.net[0].weight.sum() * 3

    with LossProbe(WithHook(), [batch_of()]) as probe:
        (gradient,) = torch.autograd.grad(probe.closures[0](), probe.parameters["net.0.weight"])
    assert torch.equal(gradient, torch.full((5, 4), 3.0))


@pytest.mark.parametrize("names", ["batch", "batch, batch_idx", "batch, number", "*arguments"])
def test_every_signature_of_training_step(names):
    scope = {}
    exec(f"def training_step(self, {names}): return self.loss", scope)  # the signature is the point
    module = type("Module", (LightningModule,), scope)()
    module.weight = nn.Parameter(torch.tensor(2.0))
    module.loss = module.weight * 3
    with LossProbe(module, [torch.ones(1)]) as probe:
        assert probe.closures[0]().item() == 6


def test_refusals():
    class Manual(Untidy):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

    class Iterates(LightningModule):
        def training_step(self, dataloader_iter):
            pass

    class Skips(Untidy):
        def training_step(self, batch, batch_idx):
            return None

    for module, batch, options in [
        (Manual(), batch_of(), {}),
        (Iterates(), batch_of(), {}),
        (nn.Linear(1, 1), batch_of(), {}),
        (Skips(), batch_of(), {}),
        (Untidy(), batch_of(), {"mode": "test"}),
        (Untidy(), "text", {}),
    ]:
        with (
            pytest.raises(UnsupportedRunError if isinstance(module, Skips) else ArgumentError),
            LossProbe(module, [batch], **options) as probe,
        ):
            probe.closures[0]()
    with pytest.raises(ArgumentError):
        LossProbe(Untidy(), [batch_of()]).closures[0]()
    with pytest.raises(ArgumentError):
        LossProbe(Untidy(), [])


def test_examples_of_a_batch_of_unknown_kind_are_counted_by_the_caller():
    class Strings(Untidy):
        def curvature_loss(self, batch):
            return self.net[0].weight.sum() * len(batch)

    with pytest.raises(ArgumentError):
        LossProbe(Strings(), ["four"])
    with LossProbe(Strings(), ["four"], samples=[4]) as probe:
        assert probe.samples == [4]


def test_a_shared_buffer_stays_shared():
    class Tied(LightningModule):
        def __init__(self):
            super().__init__()
            shared = nn.BatchNorm1d(4)
            self.one, self.two = shared, nn.BatchNorm1d(4)
            self.two.running_mean = shared.running_mean
            self.weight = nn.Parameter(torch.ones(()))

        def training_step(self, batch):
            self.one(batch)
            seen.append(self.two.running_mean is self.one.running_mean)
            return self.weight * self.two.running_mean.sum()

    seen = []
    module = Tied()
    with LossProbe(module, [torch.ones(3, 4)]) as probe:
        probe.closures[0]()
    assert seen == [True]
    assert module.two.running_mean is module.one.running_mean
    assert module.one.running_mean.eq(0).all()
