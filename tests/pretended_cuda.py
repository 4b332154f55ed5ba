"""What stands for `torch.cuda` where CUDA graphs are captured: what was captured is made again at a replay."""

import contextlib
from types import SimpleNamespace


class Pretended:
    """Notes what is called."""

    def __init__(self, step):
        self.step, self.calls = step, []

    def Stream(self):
        return SimpleNamespace(wait_stream=lambda other: self.calls.append("side waits"))

    def current_stream(self):
        return SimpleNamespace(wait_stream=lambda other: self.calls.append("main waits"))

    def stream(self, stream):
        self.calls.append("side")
        return contextlib.nullcontext()

    def CUDAGraph(self):
        return SimpleNamespace(several=0)

    @contextlib.contextmanager
    def graph(self, graph):
        self.calls.append("capture")
        made, several = [], self.step.several
        self.step.several = made.append  # a capture computes nothing
        yield
        self.step.several = several

        def replay():
            self.calls.append(f"replay {made[0]}")
            several(made[0])

        graph.replay = replay
