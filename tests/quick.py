"""``make quick``: the tests of what changed, found by the mirror of the source in ``tests/``.

``python tests/quick.py [--base COMMIT] [options of pytest]`` runs the tests of every folder with a file that is not as
it was where this branch left ``main``, or another. What depends on those folders is tested by ``make test`` alone.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
INSTALLED_AS = {"callbacks": "lit_gelu/callbacks", "export": "lit_gelu/export"}
EVERYTHING = {"pyproject.toml", "tests/conftest.py"}
BY_NAME = {
    "README.md": ("tests/test_readme.py",),
    "CONTRIBUTING.md": ("tests/test_contributing.py",),
    "examples": ("tests/test_examples.py", "tests/web"),
    "docs": ("tests/docs", "tests/site"),
    "mkdocs.yml": ("tests/site",),
    "benchmarks": ("tests/benchmarks",),
}


def git(*arguments: str, root: Path = ROOT) -> list[str]:
    """Return the lines that git prints."""
    return subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )


def changed_since(base: str, root: Path = ROOT) -> list[str]:
    """Return the files that differ from where this branch left another, and those that git does not know yet."""
    (left, *_) = git("merge-base", "HEAD", base, root=root)
    found = git("diff", "--name-only", left, root=root) + git("ls-files", "--others", "--exclude-standard", root=root)
    return sorted({name for name in found if name})


def what_to_run(changed: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return the test files and folders to run, without those that lie in another."""
    found = {test for name in changed for test in _of_file(name, root)}
    return sorted(test for test in found if not any(str(parent) in found for parent in PurePosixPath(test).parents))


def _of_file(name: str, root: Path) -> list[str]:
    """Return the tests of one changed file."""
    path = PurePosixPath(name)
    if name in EVERYTHING:
        return ["tests"]
    if path.parts[0] == "tests":
        return _of_test(path, root)
    if path.parts[0] in {"lit_gelu", *INSTALLED_AS}:
        inside = PurePosixPath(INSTALLED_AS.get(path.parts[0], "lit_gelu"), *path.parts[1:]).relative_to("lit_gelu")
        return _of_source(inside, root)
    return [test for test in BY_NAME.get(path.parts[0], ()) if (root / test).exists()]


def _of_test(path: PurePosixPath, root: Path) -> list[str]:
    """Return a test file itself; for a helper, the test files that import it, through other helpers too."""
    if path.name.startswith("test_"):
        return [str(path)] if (root / path).exists() else []  # it may be one that was removed
    users = {file for file in (root / "tests").rglob("*.py") if f" {path.stem} import" in file.read_text()}
    users |= {file for file in (root / "tests").rglob("*.py") if f"import {path.stem}\n" in file.read_text()}
    names = [PurePosixPath(file.relative_to(root).as_posix()) for file in users]
    return [test for name in names if name != path for test in _of_test(name, root)]


def _of_source(inside: PurePosixPath, root: Path) -> list[str]:
    """Return the tests of a source file, by its place in the package: its folder's mirror, or files named after it."""
    folder = root / "tests" / inside.parent
    if inside.parent == PurePosixPath():
        own = root / "tests" / f"test_{inside.stem}.py"
        return [f"tests/{own.name if own.exists() else 'test_layout.py'}"]
    if not folder.is_dir():  # export/runtime/ has tests/export/test_runtime_*.py
        named = sorted(folder.parent.glob(f"test_{folder.name}*.py"))
        return [file.relative_to(root).as_posix() for file in named] or _of_source(inside.parent, root)
    return [file.relative_to(root).as_posix() for file in sorted(folder.glob("test_*.py"))]


def main() -> int:
    """Say what is run, and run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="main", help="the branch or commit to compare with (default: main)")
    options, rest = parser.parse_known_args()
    try:
        tests = what_to_run(changed_since(options.base))
    except subprocess.CalledProcessError as error:
        parser.error(
            f"git cannot compare with {options.base}: {error.stderr.strip()} Give another: make quick BASE=HEAD"
        )
    print(f"{len(tests)} test files and folders belong to what changed since {options.base}", *tests, sep="\n  ")  # noqa: T201
    if not tests:
        return 0
    sys.stdout.flush()
    os.chdir(ROOT)
    return subprocess.run([sys.executable, "-m", "pytest", *rest, *tests], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
