"""The assembled explorer behind a plain web server, and Chromium that opens it."""

import functools
import importlib
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import web_pages

DOCS = Path(__file__).parents[3] / "docs"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Print nothing for each request."""


@pytest.fixture(scope="session")
def explorer(tmp_path_factory):
    """The address of the assembled page."""
    folder = tmp_path_factory.mktemp("site") / "explorer"  # below the root, as on the site
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        importlib.import_module("make_explorer").build_explorer(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder.parent))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/explorer/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def browser():
    reason = web_pages.missing()
    if reason:
        pytest.skip(reason)
    with web_pages.chromium() as page:
        yield page


@pytest.fixture
def page(browser):
    """Chromium, in which a test opens the page; its console must have no error at the end."""
    yield browser
    assert browser.errors() == []
