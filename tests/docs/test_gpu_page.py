"""docs/gpu.md is what its generator writes of the records that there are, and its text is true of the script."""

import importlib
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = DOCS / "gpu.md"


def test_the_page_is_not_stale(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    assert PAGE.read_text() == importlib.import_module("make_gpu").page(), "Run `make docs`."


def test_the_stages_and_options_that_it_names_are_those_of_the_script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    gpu = importlib.import_module("gpu")
    page = PAGE.read_text()
    named = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", page, re.MULTILINE)
    assert re.findall(r"`(\w+)`", " ".join(named)) == list(gpu.STAGES)
    options = {option for action in gpu.parser()._actions for option in action.option_strings}
    assert set(re.findall(r"(?<![\w-])--[a-z]+", page)) <= options
    for arguments in re.findall(r"benchmarks/gpu\.py ([^#\n]*)", page) + re.findall(r"GPU='(.*)'", page):
        gpu.parse(arguments.split('"')[0].replace("--commit ", "").split() if '"' in arguments else arguments.split())
