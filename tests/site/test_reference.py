"""Every public room has a page in the reference, and every name that it exports stands there."""

import importlib
import shutil
import tomllib

import pytest
from website import reference
from website.places import ROOT

NOT_FOR_IMPORT = {"lit_gelu.cli"}  # the command; its help and docs/command_line.md say what it does


def rooms():
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    return {name for name in packages if name.count(".") == 1} | {"lit_gelu.kernels", "lit_gelu.errors"}


def test_every_public_room_has_a_page():
    assert rooms() - NOT_FOR_IMPORT <= {room.name for room in reference.ROOMS}


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("code")
    for name in ("__init__.py", "errors.py", "surgery", "activations"):
        source = ROOT / "lit_gelu" / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        (folder / "lit_gelu").mkdir(exist_ok=True)
        copy(source, folder / "lit_gelu" / name)
    return reference.load(folder)


def test_every_exported_name_of_a_room_is_on_its_page(package):
    room = next(room for room in reference.ROOMS if room.name == "lit_gelu.surgery")
    page = reference.page(room, package)
    exported = importlib.import_module("lit_gelu.surgery").__all__
    assert [name for name in exported if f"      heading: {name}\n" not in page] == []
    assert "::: lit_gelu.surgery.swap.swap\n" in page  # the function, and not the module of its name
    assert page.index("## Functions") < page.index("## Classes") < page.index("## Errors and warnings")
    assert page.index("## Errors and warnings") < page.index("::: lit_gelu.surgery.SwapError")
