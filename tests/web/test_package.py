"""The npm package of examples/web: one exact release, and a lock file that names no registry."""

import json
import re

import web_pages


def test_the_release_is_exact_and_the_lock_file_names_no_host():
    (required,) = json.loads((web_pages.EXAMPLE / "package.json").read_text())["dependencies"].items()
    assert re.fullmatch(r"\d+\.\d+\.\d+", required[1])
    text = (web_pages.EXAMPLE / "package-lock.json").read_text()
    packages = json.loads(text)["packages"]
    assert packages[f"node_modules/{required[0]}"]["version"] == required[1]
    assert all("integrity" in package for name, package in packages.items() if name)
    assert "://" not in text
