"""The check of a built site sees what is broken, and nothing else."""

import pytest
from website.built_links import check


def site(folder, **pages):
    for name, body in pages.items():
        (folder / f"{name}.html").write_text(f"<html><body>{body}</body></html>")
    return folder


@pytest.mark.parametrize("target", ["gone.html", "b.html#gone", "#gone", "/gone.html", "folder/"])
def test_what_is_broken(tmp_path, target):
    report = check(site(tmp_path, index=f'<a href="{target}">x</a>', b=""))
    assert report.broken == (f"index.html: {target}",)


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
