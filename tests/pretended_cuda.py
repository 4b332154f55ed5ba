"""What stands for `torch.cuda` where CUDA graphs are captured: what was captured is made again at a replay."""

import contextlib
from types import SimpleNamespace


class Pretended:
    """Notes what is called; `milliseconds` says how long a replay of a step that is divided in some way takes."""

    def __init__(self, step, milliseconds=None):
        self.step, self.calls, self.milliseconds = step, [], milliseconds or {}
        self.clock = 0.0

    def Stream(self):
        return SimpleNamespace(wait_stream=lambda other: self.calls.append("side waits"))

    def current_stream(self):
        return SimpleNamespace(wait_stream=lambda other: self.calls.append("main waits"))

    def stream(self, stream):
        self.calls.append("side")
        return contextlib.nullcontext()

    def CUDAGraph(self):
        return SimpleNamespace(several=0, way=None)

    @contextlib.contextmanager
    def graph(self, graph):
        self.calls.append("capture")
        made, several = [], self.step.several
        self.step.several = made.append  # a capture computes nothing
        yield
        self.step.several = several
        way = getattr(self.step, "way", None)

        def replay():
            self.calls.append(f"replay {made[0]}")
            self.clock += self.milliseconds.get(way, 1.0)
            several(made[0])

        graph.replay = replay

    def Event(self, enable_timing):
        assert enable_timing
        event = SimpleNamespace(synchronize=lambda: self.calls.append("host waits"))
        event.record = lambda: setattr(event, "at", self.clock)
        event.elapsed_time = lambda other: other.at - event.at
        return event
