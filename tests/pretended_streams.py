"""What stands for CUDA's streams and events where kernels are started: it notes which launch waits for which."""

from contextlib import contextmanager
from typing import NamedTuple

import torch

# What kernels write; all other tensors are read.
WRITTEN = {
    "layer_forward": {"u_ptr", "y_ptr"},
    "output_layer": {"d_ptr", "losses_ptr"},
    "layer_backward": {"d_ptr"},
    "parameter_step": {"w_ptr", "wm_ptr", "wv_ptr", "b_ptr", "bm_ptr", "bv_ptr"},
}


class Launch(NamedTuple):
    """A kernel that was started, and the numbers of those that it waits for; memory by address."""

    kernel: str
    after: frozenset[int]
    reads: frozenset[int]
    writes: frozenset[int]


class Stream:
    """What is started on it comes behind what it waits for; `last` has the numbers of the last launches."""

    def __init__(self, *_):
        self.last = set()

    def wait_stream(self, other):
        self.last |= other.last

    def wait_event(self, event):
        self.last |= event.last


class PretendedStreams:
    """Stands for `torch` in a module that starts kernels, and makes what stands for the kernels."""

    def __init__(self):
        self.launches, self.main = [], Stream()
        self._now = [self.main]
        self.cuda = self
        self.Stream = Stream

    def __getattr__(self, name):
        return getattr(torch, name)

    def current_stream(self):
        return self._now[-1]

    @contextmanager
    def stream(self, stream):
        self._now.append(stream)
        yield
        self._now.pop()

    def Event(self):
        event = type("Event", (), {"last": set()})()
        event.record = lambda: setattr(event, "last", set(self.current_stream().last))
        return event

    def kernel(self, kernel, name):
        """Return what stands for a kernel, and starts nothing."""
        names = kernel.arg_names

        def launch(*given, **_):
            tensors = {
                key: value.data_ptr() for key, value in zip(names, given, strict=False) if torch.is_tensor(value)
            }
            writes = frozenset(tensors[key] for key in WRITTEN[name])
            after = frozenset(self.current_stream().last)
            self.launches.append(Launch(name, after, frozenset(tensors.values()) - writes, writes))
            self.current_stream().last = {len(self.launches) - 1}

        return type("Kernel", (), {"__getitem__": lambda _, grid: launch})()

    def before(self):
        """Return for every launch all that have ended when it begins."""
        found = []
        for launch in self.launches:
            found.append(set(launch.after).union(*(found[number] for number in launch.after)))
        return found

    def unordered(self):
        """Return the kernels of launches of which one writes what another may use at the same time."""
        before, found = self.before(), set()
        for late, launch in enumerate(self.launches):
            for early, other in enumerate(self.launches[:late]):
                shared = other.writes & (launch.reads | launch.writes) | other.reads & launch.writes
                if early not in before[late] and shared:
                    found.add((other.kernel, launch.kernel))
        return found
