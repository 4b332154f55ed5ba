"""The kernel of Adam over a stack in Triton's interpreter, beside `torch.optim.Adam`; see `interpreted_harness`.

python interpreted_adam.py OUT
"""

import functools

import torch
from interpreted_harness import main

from lit_gelu.replicas import EagerExecutor, build_members
from lit_gelu.replicas.device import adam as device_adam
from lit_gelu.tasks import TIMITFrameClassifier

CELLS = [{"learning_rate": rate} for rate in (1e-3, 1e-4, 3e-3)]
ULP = 2.0**-23


def made(replicas=3):
    """Return a group's optimizer whose stacks the kernel updates."""
    device_adam.has_kernel = lambda _: True
    build = functools.partial(TIMITFrameClassifier, width=16, keep=1.0, activation="swish(learnable=True)")
    executor = EagerExecutor(build_members(build, CELLS[:replicas], range(replicas)), "device")
    return executor, executor.configure_optimizers()


def steps_are_torchs():
    executor, adam = made()
    alone = [{n: p.detach().clone().requires_grad_() for n, p in m.named_parameters()} for m in executor.stacks.modules]
    theirs = [torch.optim.Adam(own.values(), lr=cell["learning_rate"]) for own, cell in zip(alone, CELLS, strict=True)]
    torch.manual_seed(0)
    for _ in range(4):
        gradients = {name: torch.randn_like(stack) for name, stack in executor.stacks.trained.items()}
        adam.update(gradients)
        for replica, (own, optimizer) in enumerate(zip(alone, theirs, strict=True)):
            for name, parameter in own.items():
                parameter.grad = gradients[name][replica].clone()
            optimizer.step()
    for replica, own in enumerate(alone):
        for name, parameter in own.items():
            mine = executor.stacks.modules[replica].get_parameter(name)
            moments = adam.own[replica].state[mine]
            its = theirs[replica].state[parameter]
            for one, other in ((mine, parameter), *((moments[key], its[key]) for key in ("exp_avg", "exp_avg_sq"))):
                # a difference of two numbers of one size has no relative exactness, so the largest counts too
                torch.testing.assert_close(one, other, rtol=4 * ULP, atol=4 * ULP * float(other.detach().abs().max()))


def an_inactive_row_stays():
    executor, adam = made()
    gradients = {name: torch.ones_like(stack) for name, stack in executor.stacks.trained.items()}
    adam.update(gradients)
    adam.stop(1)
    before = [stack.detach().clone() for stack in executor.stacks.trained.values()]
    adam.update(gradients)
    for stack, old in zip(executor.stacks.trained.values(), before, strict=True):
        assert torch.equal(stack[1], old[1])
        assert not torch.equal(stack[0], old[0])
    first = adam.moments["output.weight"][0]
    assert first[1].max() < first[0].max()


CHECKS = (steps_are_torchs, an_inactive_row_stays)

if __name__ == "__main__":
    main(CHECKS)
