"""Pictures are left blank where a test does not look at them."""

import blank_pictures
import pytest


@pytest.fixture(autouse=True)
def pictures(request, monkeypatch):
    """Leave pictures blank, unless the test is marked ``pictures``."""
    blank_pictures.leave_blank(request, monkeypatch)
