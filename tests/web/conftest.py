"""Chromium and the served example, once for all tests of a worker."""

import pytest
import web_pages


@pytest.fixture(scope="session")
def browser():
    yield from web_pages.chromium_or_skip()


@pytest.fixture(scope="session")
def digits(browser, tmp_path_factory):
    """The example on the bundled digits: its address, and the folder with checkpoint and site."""
    folder = tmp_path_factory.mktemp("web")
    with web_pages.served(folder, "--data", "digits") as address:
        yield address, folder


@pytest.fixture
def page(browser, digits):
    """The page, opened anew; its console must have no error at the end."""
    address, _ = digits
    browser.open(address)
    yield browser
    assert browser.errors() == []
