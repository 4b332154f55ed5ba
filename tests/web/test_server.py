"""The example's web server: what it gives out, what it refuses, and clients that come in crowds or go away."""

import http.client
import runpy
import threading

import pytest
import web_pages
from child_processes import PATIENCE

POLL = 0.01  # seconds until a server notices that it is to end; by default half a second


@pytest.fixture(scope="module")
def example():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(web_pages.EXAMPLE)  # where the script finds its other files, as python SCRIPT does
        yield runpy.run_path(str(web_pages.EXAMPLE / "serve.py"), run_name="serve")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("web")
    (folder / "secret.txt").write_text("outside")
    site = folder / "site"
    (site / "ort").mkdir(parents=True)
    (site / "index.html").write_text("the page")
    (site / "ort" / "runtime.mjs").write_text("the runtime")
    (site / "out.txt").symlink_to(folder / "secret.txt")
    (site / "away").symlink_to(folder)
    (site / "circle").symlink_to(site / "circle")
    (site / "inside.html").symlink_to(site / "index.html")
    (site / "linked").mkdir()
    (site / "linked" / "index.html").symlink_to(folder / "secret.txt")
    return site


@pytest.fixture
def server(example, site):
    with example["server_of"](site, 0) as server:
        threading.Thread(target=server.serve_forever, args=(POLL,), daemon=True).start()
        yield server
        server.shutdown()


def asked(server, path):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE)
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, body.decode()


PAGES = {"/": "the page", "/index.html": "the page", "/inside.html": "the page", "/ort/runtime.mjs": "the runtime"}
OUTSIDE = ["/out.txt", "/away/secret.txt", "/linked/", "/../secret.txt", "/%2e%2e/secret.txt"]


@pytest.mark.parametrize("path", [*PAGES, *OUTSIDE, "/ort/", "/%00", "/nothing"])
def test_what_is_given_out(server, path):
    status, text = asked(server, path)
    if path in PAGES:
        assert (status, text) == (200, PAGES[path])
    else:
        assert status == 404
        assert "outside" not in text
        assert "runtime.mjs" not in text
