"""The assembled explorer behind a plain web server, and Chromium that opens it."""

import importlib
from pathlib import Path

import pytest
import web_pages

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="session")
def explorer(tmp_path_factory):
    """The address of the assembled page."""
    folder = tmp_path_factory.mktemp("site") / "explorer"  # below the root, as on the site
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        importlib.import_module("make_explorer").build_explorer(folder)
    with web_pages.plain_server(folder.parent) as address:
        yield f"{address}explorer/"


@pytest.fixture(scope="session")
def browser():
    yield from web_pages.chromium_or_skip()


@pytest.fixture
def page(browser):
    """Chromium, in which a test opens the page; its console must have no error at the end."""
    yield browser
    assert browser.errors() == []
