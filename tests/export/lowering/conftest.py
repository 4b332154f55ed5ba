"""Every registered activation, traced once at opset 20."""

import pytest
from export_cases import EveryActivation
from traced_graph import TracedGraph


@pytest.fixture(scope="package")
def every_activation():
    return TracedGraph(EveryActivation())
