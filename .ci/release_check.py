"""`make release-check`: everything that can be wrong with a release, tried before it is one.

Versions that do not agree; sdist and wheel, built from what git tracks; their metadata, readme and content; the
citation; the wheel alone in an empty environment, and with each extra alone. An extra's environment is a light one over
that of the wheel, which takes 6 GB. Everything is written below build/release.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from email.parser import Parser
from pathlib import Path
from typing import Any

from extra_smokes import BASE, SMOKES, Smoke

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "release"
FOLDERS = {"lit_gelu/": "lit_gelu/", "callbacks/": "lit_gelu/callbacks/", "export/": "lit_gelu/export/"}
_CITATION = "from cffconvert.cli.cli import cli; cli()"  # it has no `python -m`


class ReleaseError(SystemExit):
    """Something that must not be released."""


def versions(root: Path) -> dict[str, str]:
    """Where a version stands, and which."""
    texts = {name: (root / name).read_text(encoding="utf-8") for name in ("CHANGELOG.md", "CITATION.cff")}
    recipe = (root / "recipe" / "recipe.yaml").read_text(encoding="utf-8")
    newest = re.search(r"^## \[([^\]]+)\]", texts["CHANGELOG.md"], re.MULTILINE)
    cited = re.search(r"^version: (\S+)$", texts["CITATION.cff"], re.MULTILINE)
    packaged = re.search(r'^  version: "([^"]+)"$', recipe, re.MULTILINE)
    found = {"CHANGELOG.md": newest, "CITATION.cff": cited, "recipe/recipe.yaml": packaged}
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {"pyproject.toml": project["version"]} | {name: match[1] if match else "" for name, match in found.items()}


def version_faults(found: Mapping[str, str]) -> list[str]:
    """What does not have the version of pyproject.toml."""
    expected = found["pyproject.toml"]
    return [
        f"{name} has version {version or '(none)'}, pyproject.toml has {expected}"
        for name, version in found.items()
        if version != expected
    ]


def date_faults(root: Path) -> list[str]:
    """What a version lacks before its tag is set: its date in CHANGELOG.md, and the same in CITATION.cff."""
    changelog, citation = ((root / name).read_text(encoding="utf-8") for name in ("CHANGELOG.md", "CITATION.cff"))
    section = re.search(r"^## \[[^\]]+\] - (.+)$", changelog, re.MULTILINE)
    date = section[1] if section else ""
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        return [f"CHANGELOG.md says {date or 'nothing'!r} in the place of the date of the release"]
    return [] if f"date-released: {date}\n" in citation else [f"CITATION.cff lacks the line date-released: {date}"]


def wheel_faults(names: Iterable[str], tracked: Iterable[str]) -> list[str]:
    """What is in a wheel and should not be, and what of the sources is missing."""
    packed = {name for name in names if not re.match(r"lit_gelu-[^/]+\.dist-info/", name)}
    expected = {
        place + name.removeprefix(folder)
        for name in tracked
        for folder, place in FOLDERS.items()
        if name.startswith(folder)
    }
    missing = [f"the wheel lacks {name}" for name in sorted(expected - packed)]
    return missing + [f"the wheel has {name}, which no source is" for name in sorted(packed - expected)]


def readme_faults(metadata: str) -> list[str]:
    """What is wrong with the page that a registry makes of a distribution's metadata."""
    from readme_renderer import markdown

    message = Parser().parsestr(metadata)
    page = markdown.render(message.get_payload())
    if page is None:
        return ["the readme cannot be rendered"]
    relative = re.findall(r'(?:src|href)="(?!https?:|mailto:|#)([^"]*)"', page)
    return [f"the readme has a relative link: {link}" for link in relative]


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a command that has to succeed, and return its output; PIP_* and the like go on to it."""
    found = call(*command, cwd=cwd)
    if found.returncode:
        raise ReleaseError(f"{' '.join(map(str, command))[:300]}\n{found.stdout}\n{found.stderr}")
    return found.stdout


def call(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command; nothing of the checkout and of the user's own packages is on its path."""
    hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    env |= {"PYTHONNOUSERSITE": "1", "OMP_NUM_THREADS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, check=False)  # noqa: S603


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def refuse(faults: Sequence[str]) -> None:
    """End with what is wrong, if anything is."""
    if faults:
        raise ReleaseError("\n".join(faults))


def build(tracked: Sequence[str]) -> tuple[Path, Path]:
    """Build sdist and wheel from a copy of what git tracks; the wheel is made from the sdist."""
    source, dist = WORK / "source", WORK / "dist"
    for folder in (source, dist):
        shutil.rmtree(folder, ignore_errors=True)
    for name in tracked:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, source / name)
    run(sys.executable, "-m", "build", "--outdir", dist, source)
    (sdist,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
    say(f"built {sdist.name} ({sdist.stat().st_size:,} bytes) and {wheel.name} ({wheel.stat().st_size:,} bytes)")
    return sdist, wheel


def check_files(sdist: Path, wheel: Path, tracked: Sequence[str]) -> None:
    """Check metadata, readme and content of what was built, and the citation."""
    say(run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel).strip())
    say(run(sys.executable, "-m", "check_wheel_contents", "--toplevel", "lit_gelu", wheel).strip())
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        refuse([*wheel_faults(names, tracked), *readme_faults(archive.read(metadata).decode())])
    say(f"the wheel holds {len(names)} files: every source and nothing else; its readme renders without relative links")
    say(run(sys.executable, "-c", _CITATION, "--validate", "--infile", ROOT / "CITATION.cff").strip())


def environment(python: str, wheel: Path) -> Path:
    """Make an empty environment, install the wheel into it, and return its Python."""
    folder = WORK / f"env-{Path(python).name}"
    shutil.rmtree(folder, ignore_errors=True)
    run(python, "-m", "venv", folder)
    inside = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    run(inside, "-m", "pip", "install", "--quiet", wheel)
    say(run(inside, "-m", "pip", "check").strip())
    return inside


def light_environment(base: Path, wheel: Path, extra: str) -> tuple[Path, list[str]]:
    """Make an environment over another one, with an extra; return its Python and what it has of its own."""
    folder = WORK / f"env-extra-{extra}"
    shutil.rmtree(folder, ignore_errors=True)
    run(base, "-m", "venv", "--without-pip", folder)
    inside = folder / base.parent.name / "python"
    site, below = (
        Path(run(p, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()) for p in (inside, base)
    )
    (site / "base.pth").write_text(f"{below}\n", encoding="utf-8")
    run(inside, "-m", "pip", "install", "--quiet", f"{wheel}[{extra}]")
    return inside, sorted(path.name.split("-")[0] for path in site.glob("*.dist-info"))


def smoke(python: Path, what: Smoke, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a smoke in an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return call(python, *what.arguments, cwd=folder)


def must_work(python: Path, name: str, what: Smoke) -> None:
    """Run a smoke that has to succeed and to write its file."""
    folder = WORK / "smoke"
    found = smoke(python, what, folder)
    if found.returncode or not (folder / what.writes).exists():
        raise ReleaseError(f"{name} failed ({found.returncode}):\n{found.stdout}\n{found.stderr}")
    last = (found.stdout.strip() or "done").splitlines()[-1]
    say(f"  {name}: {last[:110]}")


def must_name_the_extra(python: Path, extra: str, what: Smoke) -> None:
    """Run an extra's smoke where it is missing: the last line has to name it."""
    found = smoke(python, what, WORK / "smoke")
    last = (found.stderr.strip() or "nothing").splitlines()[-1]
    if not found.returncode or f"pip install 'lit-gelu[{extra}]'" not in last:
        raise ReleaseError(f"without {extra}, exit code {found.returncode}, {last!r} does not name the extra")
    say(f"  without {extra}: {last[-110:]}")


def user_extras(project: Mapping[str, Any]) -> Iterator[str]:
    """The extras that users may want."""
    developers = {"bench", "browser", "dev", "release", "runtimes", "site"}
    return (name for name in project["optional-dependencies"] if name not in developers)


def try_python(python: str, wheel: Path, extras: Sequence[str]) -> None:
    """Install the wheel for one Python, alone and with each extra alone, and try it."""
    say(f"{run(python, '--version').strip()}: the wheel alone")
    base = environment(python, wheel)
    for name, what in BASE.items():
        must_work(base, name, what)
    for extra in extras:
        if SMOKES[extra].is_asked_for:
            must_name_the_extra(base, extra, SMOKES[extra])
        inside, own = light_environment(base, wheel, extra)
        must_work(inside, f"{extra} ({', '.join(own)})", SMOKES[extra])
        shutil.rmtree(inside.parent.parent)
    shutil.rmtree(base.parent.parent)


def main() -> None:
    """Check a release."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="which Pythons to install the wheel for")
    parser.add_argument("--extras", nargs="+", help="which extras to try; all by default")
    parser.add_argument("--no-install", action="store_true", help="leave out what downloads gigabytes")
    parser.add_argument("--released", action="store_true", help="the tag is about to be set: there has to be a date")
    given = parser.parse_args()
    found = versions(ROOT)
    refuse([*version_faults(found), *(date_faults(ROOT) if given.released else [])])
    say(f"version {found['pyproject.toml']} in {', '.join(found)}")
    tracked = [name for name in run("git", "ls-files").splitlines() if (ROOT / name).is_file()]
    sdist, wheel = build(tracked)
    check_files(sdist, wheel, tracked)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for python in [] if given.no_install else given.python:
        try_python(python, wheel, given.extras or list(user_extras(project)))
    say(f"release-check passed; {sdist} and {wheel} are what would be released")


if __name__ == "__main__":
    main()
