"""Pages of a repository become pages of the site, with what they link to."""

import pytest
from website.places import ROOT, menu, pages, place
from website.source_tree import SourceTree


@pytest.fixture
def repository(tmp_path):
    files = {
        "README.md": "# A\n\nSee [b](docs/b.md#x), [examples](examples/), ![](docs/i.png) and `Swap`.\n",
        "docs/b.md": "# B\n\n[up](../README.md) [code](../examples/run.py)\n",
        "docs/i.png": "not really",
        "examples/run.py": '"""Runs it."""\n\nprint("[no](link.md)")\n',
        "examples/set.yaml": "# A setting.\na: 1\n",
    }
    for name, text in files.items():
        (tmp_path / "repository" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "repository" / name).write_text(text)
    return tmp_path / "repository"


def test_pages_and_what_they_link_to(repository, tmp_path):
    tree = SourceTree(tmp_path / "source", repository, link_names=lambda text: text.replace("`Swap`", "SWAP"))
    tree.add_pages(pages(repository))
    assert sorted(tree.written) == [
        "b.md",
        "files/examples.md",
        "files/examples/run.py.md",
        "files/examples/set.yaml.md",
        "i.png",
        "index.md",
    ]
    index = (tmp_path / "source" / "index.md").read_text()
    assert index == "# A\n\nSee [b](b.md#x), [examples](files/examples.md), ![](i.png) and SWAP.\n"
    assert "[up](index.md) [code](files/examples/run.py.md)" in (tmp_path / "source" / "b.md").read_text()
    folder = (tmp_path / "source" / "files" / "examples.md").read_text()
    assert "- [run.py](examples/run.py.md): Runs it.\n- [set.yaml](examples/set.yaml.md): A setting." in folder
    assert 'print("[no](link.md)")' in (tmp_path / "source" / "files/examples/run.py.md").read_text()


def test_a_link_to_nothing_is_refused(repository, tmp_path):
    (repository / "docs" / "b.md").write_text("[a](gone.md)")
    with pytest.raises(FileNotFoundError, match=r"docs/b.md links to gone.md, and there is no docs/gone.md"):
        SourceTree(tmp_path / "source", repository).add_pages(pages(repository))


def _leaves(part):
    if isinstance(part, str):
        return [part]
    return [leaf for value in (part.values() if isinstance(part, dict) else part) for leaf in _leaves(value)]


def test_every_page_of_the_repository_is_in_the_menu_once():
    names = [place(path, start=False).as_posix() for path in pages(ROOT)]
    others = ["gallery/index.md", "gallery/a.md", "reference/index.md"]
    found = _leaves(menu(names, others[:2], others[2:], explorer=True))
    assert sorted(found) == sorted([*names, *others, "explorer/index.html"])
