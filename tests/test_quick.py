"""``make quick``: which tests belong to which files."""

import subprocess

import pytest
from quick import ROOT, changed_since, what_to_run


@pytest.mark.parametrize(
    ("changed", "among", "not_among"),
    [
        ("lit_gelu/curvature/loss/trace.py", "tests/curvature/loss/test_trace.py", "tests/curvature/activation"),
        ("export/parity/ulp.py", "tests/export/parity/test_ulp.py", "tests/export/test_mnist.py"),
        ("export/runtime/tuning.py", "tests/export/test_runtime_tuning.py", "tests/export/test_trial.py"),
        ("callbacks/swap/run.py", "tests/callbacks/swap/test_resume.py", "tests/callbacks/test_onnx_export.py"),
        ("lit_gelu/activations/registry.py", "tests/activations/test_registry.py", "tests/activations/families"),
        (
            "lit_gelu/activations/families/mish.py",
            "tests/activations/families/test_mish.py",
            "tests/activations/test_registry.py",
        ),
        ("lit_gelu/files.py", "tests/test_files.py", "tests/test_layout.py"),
        ("lit_gelu/__init__.py", "tests/test_layout.py", "tests/test_files.py"),
        ("tests/export/test_trial.py", "tests/export/test_trial.py", "tests/export/test_mnist.py"),
        ("tests/killed_runs.py", "tests/callbacks/test_resume_after_kill.py", "tests/callbacks/test_traps.py"),
        ("tests/web_pages.py", "tests/web/test_page.py", "tests/test_examples.py"),
        ("examples/train_digits.py", "tests/test_examples.py", "tests/docs"),
        ("README.md", "tests/test_readme.py", "tests/docs"),
        ("pyproject.toml", "tests", "tests/docs"),
    ],
)
def test_what_to_run_a_file(changed, among, not_among):
    found = what_to_run([changed])
    assert among in found
    assert not_among not in found


def test_a_helper_of_helpers_reaches_the_tests():
    """`unusual_nets` is imported by tests; `child_processes` by `killed_runs`, which tests import."""
    assert "tests/callbacks/test_resume_after_kill.py" in what_to_run(["tests/child_processes.py"])


def test_every_source_file_has_tests_that_exist():
    files = [file for folder in ("lit_gelu", "callbacks", "export") for file in (ROOT / folder).rglob("*.py")]
    assert len(files) > 150
    for file in files:
        found = what_to_run([file.relative_to(ROOT).as_posix()])
        assert found, file
        assert all((ROOT / test).exists() for test in found)


def test_nothing_is_run_twice_and_what_was_removed_is_not_run():
    assert what_to_run(["tests/conftest.py", "tests/export/test_trial.py", "README.md"]) == ["tests"]
    assert what_to_run(["tests/export/test_removed.py", "LICENSE"]) == []


def test_what_counts_as_changed(tmp_path):
    """Commits of this branch, what is not committed yet and new files; not what the other branch did since."""

    def git(*arguments):
        author = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
        subprocess.run(["git", "-C", tmp_path, *author, *arguments], check=True, capture_output=True)

    def write(name, content):
        (tmp_path / name).write_text(content)
        git("add", name)

    git("init", "--initial-branch=main")
    for name in ("kept", "committed", "edited", "theirs"):
        write(name, "1")
    git("commit", "-m", "first")
    git("checkout", "-b", "own")
    write("committed", "2")
    git("commit", "-m", "own")
    git("checkout", "main")
    write("theirs", "2")
    git("commit", "-m", "theirs")
    git("checkout", "own")
    (tmp_path / "edited").write_text("2")
    (tmp_path / "new").write_text("2")
    assert changed_since("main", tmp_path) == ["committed", "edited", "new"]
