"""Pages of the repository become pages of the site."""

from website.places import ROOT, menu, pages, place


def _leaves(part):
    if isinstance(part, str):
        return [part]
    return [leaf for value in (part.values() if isinstance(part, dict) else part) for leaf in _leaves(value)]


def test_every_page_of_the_repository_is_in_the_menu_once():
    names = [place(path, start=False).as_posix() for path in pages(ROOT)]
    others = ["gallery/index.md", "gallery/a.md", "reference/index.md"]
    leaves = _leaves(menu(names, others[:2], others[2:], explorer=True))
    assert sorted(leaves) == sorted([*names, *others, "explorer/index.html"])
