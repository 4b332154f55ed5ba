"""The check of a built site sees what is broken, and nothing else."""

import pytest
from website.built_links import check


def site(folder, **pages):
    for name, body in pages.items():
        (folder / f"{name}.html").write_text(f"<html><body>{body}</body></html>")
    return folder


def test_what_leads_somewhere(tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    index = '<h1 id="top x">a</h1><a href="b.html#c">b</a><a href="#top%20x">t</a><img src="a.png"><a href=".">i</a>'
    other = '<h2 id="c">c</h2><a href="index.html?q=1">i</a><a href="https://example.org">e</a>'
    found = check(site(tmp_path, index=index, b=other))
    assert (found.checked, found.broken, found.fetched, found.outside) == (5, (), (), ("https://example.org",))


@pytest.mark.parametrize("target", ["gone.html", "b.html#gone", "#gone", "/gone.html", "folder/"])
def test_what_is_broken(tmp_path, target):
    found = check(site(tmp_path, index=f'<a href="{target}">x</a>', b=""))
    assert found.broken == (f"index.html: {target}",)


@pytest.mark.parametrize(
    "body",
    [
        '<script src="https://x.org/a.js"></script>',
        '<link rel="stylesheet" href="//x.org/a.css">',
        '<img src="https://x.org/a">',
    ],
    ids=["script", "style", "image"],
)
def test_what_is_loaded_from_elsewhere(tmp_path, body):
    assert len(check(site(tmp_path, index=body)).fetched) == 1


def test_a_site_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="make site"):
        check(tmp_path)
