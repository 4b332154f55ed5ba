"""Pictures of monitors are rendered where a test looks at them: it takes longer than the short runs of most tests."""

import pytest

from lit_gelu.callbacks.activation_curvature import log
from lit_gelu.callbacks.loss_curvature import monitor


@pytest.fixture(autouse=True)
def pictures(request, monkeypatch):
    """Let monitors make their figures but not write them, unless the test is marked ``pictures``."""
    if request.node.get_closest_marker("pictures") is None:
        for module in (log, monitor):
            monkeypatch.setattr(module, "log_figure", lambda *_: None)
