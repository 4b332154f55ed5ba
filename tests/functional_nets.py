"""Networks that call activations as functions, in every way in which people write it.

Each has ``expected(x, f)``: what it computes when ``f`` stands in the place of the activation that the tests replace.
They are here, and not in a test module, because pytest compiles those in its own way, and pickle must find the classes.
"""

import functools

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


def helper(x):
    return F.gelu(x)


def doubling(function):
    @functools.wraps(function)
    def double(*args, **kwargs):
        return 2 * function(*args, **kwargs)

    return double


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(6, 4)

    def expected(self, x, f):
        return self.second(f(self.first(x)))


class Function(Net):
    def forward(self, x):
        return self.second(F.gelu(self.first(x)))


class TensorMethod(Net):
    def forward(self, x):
        x = self.first(x)
        return self.second(x.relu())


class Keyword(Net):
    def forward(self, x):
        return self.second(nn.functional.leaky_relu(negative_slope=0.2, input=self.first(x)))


class Positional(Net):
    def forward(self, x):
        return self.second(F.elu(self.first(x), 0.5, True))


class InPlaceMethod(Net):
    def forward(self, x):
        return self.second(self.first(x).relu_())


class ManyLines(Net):
    def forward(self, x):
        return self.second(
            F.gelu(
                # ä comment that is more bytes than letters: äöü
                (self.first(x) + 0),  # the input
                approximate="tanh",
            )
        )


# fmt: off
class MethodChain(Net):
    def forward(self, x):
        return self.second((self.first(x)
                            * 1)
                           .relu()
                           .add(0))
# fmt: on


class Comprehension(Net):
    def forward(self, x):
        return self.second(torch.stack([F.silu(row) for row in self.first(x)]))

    def expected(self, x, f):
        """Row by row too: a kernel's rounding may depend on how many numbers it is given."""
        return self.second(torch.stack([f(row) for row in self.first(x)]))


class Loop(Net):
    def forward(self, x):
        x = self.first(x)
        for _ in range(3):
            x = F.gelu(x)
        return self.second(x)

    def expected(self, x, f):
        return self.second(f(f(f(self.first(x)))))


class Nested(Net):
    def forward(self, x):
        return self.second(F.relu(F.relu(self.first(x)) - 0.1))

    def expected(self, x, f):
        return self.second(f(f(self.first(x)) - 0.1))


class Method(Net):
    def forward(self, x):
        return self.second(self._activate(self.first(x)))

    def _activate(self, x):
        return F.gelu(x)


class Mangled(Net):
    def __init__(self):
        super().__init__()
        self.__scale = 3.0

    def forward(self, x):
        return self.__scale * self.second(F.gelu(self.first(x)))

    def expected(self, x, f):
        return 3 * super().expected(x, f)


class OverSuper(Net):
    """Its forward needs ``__class__``."""

    def extra_repr(self):
        return ""

    def forward(self, x):
        assert super().extra_repr() == ""
        assert __class__ is OverSuper
        return self.second(F.gelu(self.first(x)))


class Decorated(Net):
    @doubling
    def forward(self, x, scale=1.0, *, shift=0.0):
        return self.second(F.gelu(self.first(x))) * scale + shift

    def expected(self, x, f):
        return 2 * super().expected(x, f)


class OtherReceiver(Net):
    def forward(this, x):
        return this.second(F.gelu(this.first(x)))


class Held(Net):
    """Holds functions, as torch's own transformer layers do."""

    def __init__(self):
        super().__init__()
        self.activation = F.gelu

    def forward(self, x):
        return self.second(self.activation(self.first(x)))


class HeldPartial(Held):
    def __init__(self):
        super().__init__()
        self.activation = functools.partial(F.leaky_relu, negative_slope=0.2)


class ByHelper(Net):
    """The call is in no method."""

    def forward(self, x):
        return self.second(helper(self.first(x)))


class ByVariable(Net):
    """What is called may change."""

    def forward(self, x):
        activation = F.gelu if x.dim() else F.relu
        return self.second(activation(self.first(x)))


class BySuper(Function):
    """The method that calls is not the one that the class has."""

    def forward(self, x):
        return super().forward(x)


class Checkpointed(Net):
    """Computed again in the backward pass, when forward is over."""

    def forward(self, x):
        return self.second(checkpoint(lambda y: F.gelu(y), self.first(x), use_reentrant=False))


class AliasedFunction(Net):
    """Its first layer's output is used again after it was overwritten."""

    def forward(self, x):
        h = self.first(x)
        return self.second(F.relu(h, inplace=True)) + self.second(h)


class StatementOnly(Net):
    def forward(self, x):
        h = self.first(x)
        h.relu_()
        return self.second(h)


class ReusedModule(Net):
    def __init__(self):
        super().__init__()
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.second(self.act(self.first(x))))


REWRITTEN = {
    Function: "gelu",
    TensorMethod: "relu",
    Keyword: "leaky_relu(negative_slope=0.2)",
    Positional: "elu(alpha=0.5, inplace=True)",
    InPlaceMethod: "relu(inplace=True)",
    ManyLines: "gelu(approximate='tanh')",
    MethodChain: "relu",
    Comprehension: "silu",
    Loop: "gelu",
    Nested: "relu",
    Method: "gelu",
    Mangled: "gelu",
    OverSuper: "gelu",
    Decorated: "gelu",
    Checkpointed: "gelu",
}
# What calls is in no method of the class that names what it calls.
REFUSED = (OtherReceiver, ByHelper, ByVariable, BySuper, StatementOnly, AliasedFunction)
HELD = {Held: "gelu", HeldPartial: "leaky_relu(negative_slope=0.2)"}
