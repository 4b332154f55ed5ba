"""The site's builder lies in docs/website, which no package installs; the site is built once for all tests of a run."""

import os
import sys
from pathlib import Path

import pytest
import web_pages
from child_processes import run_python
from filelock import FileLock

ROOT = Path(__file__).parents[2]
AXE = ROOT / "tests" / "docs" / "explorer" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
sys.path.append(str(ROOT / "docs"))


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of the built site; the workers of one run share it."""
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with FileLock(shared / "site.lock"):
        done = shared / "site.built"
        if not done.exists():
            run_python("import runpy; runpy.run_path('docs/make_site.py', run_name='__main__')", cwd=ROOT)
            done.touch()
    return ROOT / "build" / "website" / "site"


@pytest.fixture(scope="session")
def address(site):
    """The site's address on a server of its own."""
    with web_pages.plain_server(site) as server:
        yield server


@pytest.fixture(scope="session")
def axe():
    """The script that looks for what keeps people from using a page."""
    return AXE.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def browser():
    yield from web_pages.chromium_or_skip(AXE, "axe-core in tests/docs/explorer/axe/node_modules")
