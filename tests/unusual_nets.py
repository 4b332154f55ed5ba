"""Networks that hold, share and reach activations in unusual ways; here, and not in a test, as in functional_nets."""

import torch
import torch.nn.functional as F
from torch import nn
from transformers.activations import gelu as gelu_of_transformers


class Caller(nn.Module):
    """Calls an activation that it shares with others."""

    def __init__(self, act):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.act = act

    def forward(self, x):
        return self.act(self.linear(x))


class Sharing(nn.Module):
    """Two modules call one activation; it has the name that it has in the first."""

    def __init__(self):
        super().__init__()
        act = nn.ReLU()
        self.first, self.second, self.third = Caller(act), Caller(act), Caller(act)

    def forward(self, x):
        return self.third(self.second(self.first(x)))

    def expected(self, x, first, second, third):
        return third(self.third.linear(second(self.second.linear(first(self.first.linear(x))))))


class Reaching(nn.Module):
    """Calls the activation of its child, which calls it too."""

    def __init__(self):
        super().__init__()
        self.inner = Caller(nn.ReLU())

    def forward(self, x):
        return self.inner(self.inner.act(x))


class OfLibrary(nn.Module):
    """As transformers' RobertaLMHead: calls an activation module that is a global of another library, and its own."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.act = nn.GELU()

    def forward(self, x):
        return self.act(self.linear(gelu_of_transformers(x)))


class TwoOfLibrary(nn.Module):
    def forward(self, x):
        return gelu_of_transformers(torch.sin(gelu_of_transformers(x)))


class Holding(nn.Module):
    """Holds a function; each subclass calls it in another way."""

    function = staticmethod(F.leaky_relu)

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.act = type(self).function

    def expected(self, x, f):
        return f(self.linear(x))


class Positional(Holding):
    def forward(self, x):
        return self.act(self.linear(x), 0.2)


class ByKeyword(Holding):
    def forward(self, x):
        return self.act(negative_slope=0.2, input=self.linear(x))


class InAnotherMethod(Holding):
    def forward(self, x):
        return self.activate(self.linear(x))

    def activate(self, x):
        return self.act(x, negative_slope=0.2) if self.act is not None else x


class InPlace(Holding):
    function = staticmethod(F.relu)

    def forward(self, x):
        return self.act(self.linear(x), inplace=True)


class ByVariable(Holding):
    def forward(self, x):
        act = self.act
        return act(self.linear(x), 0.2)


class HandedOn(Holding):
    function = staticmethod(F.relu)

    def forward(self, x):
        return torch.stack(list(map(self.act, self.linear(x))))


class HeldByChild(nn.Module):
    """Calls the function that its child holds."""

    def __init__(self):
        super().__init__()
        self.child = InPlace()

    def forward(self, x):
        return self.child.act(self.child.act(x) - 1)


class HeldByChildWithArguments(nn.Module):
    def __init__(self):
        super().__init__()
        self.child = Positional()

    def forward(self, x):
        return self.child.act(x, 0.3)


class InTraining(nn.Module):
    """Has a branch for training alone, as torchvision's GoogLeNet has its auxiliary classifiers."""

    def __init__(self):
        super().__init__()
        self.linear, self.act, self.auxiliary = nn.Linear(4, 4), nn.ReLU(), nn.ReLU()
        self.norm, self.dropout = nn.BatchNorm1d(4), nn.Dropout(0.5)

    def forward(self, x):
        h = self.act(self.dropout(self.norm(self.linear(x))))
        if self.training:
            h = h + F.gelu(self.auxiliary(x))
        return h


class WantsTargets(nn.Module):
    """As torchvision's detectors."""

    def __init__(self):
        super().__init__()
        self.act = nn.ReLU()

    def forward(self, x, targets=None):
        if self.training and targets is None:
            raise ValueError("targets should not be none when in training mode")
        return self.act(x)


class TwoMethods(nn.Module):
    """One activation, called by two of its methods."""

    def __init__(self):
        super().__init__()
        self.act, self.linear = nn.ReLU(), nn.Linear(4, 4)

    def forward(self, x):
        return self.one(self.two(x))

    def one(self, x):
        return self.act(self.linear(x))

    def two(self, x):
        return self.act(x)
