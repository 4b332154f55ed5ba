"""Put the interactive explorer into a folder that any web server can serve: ``python docs/make_explorer.py``.

The page is in ``docs/explorer``, and so are the ONNX files that compute what it draws; ``--models`` exports these anew
and does no more.
onnxruntime-web, which runs them, comes from npm by ``examples/web`` (``make browser`` installs it).
"""

import argparse
import shutil
from pathlib import Path

from lit_gelu.errors import LitGeluError

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "explorer"
MODELS = PAGE / "models"
OUTPUT = DOCS.parent / "build" / "website_explorer"
RUNTIME = DOCS.parent / "examples" / "web" / "node_modules" / "onnxruntime-web" / "dist"
# Under names that every server knows the type of: a module that comes as anything but JavaScript is refused.
RUNTIME_FILES = {
    "ort.wasm.min.mjs": "ort.js",
    "ort-wasm-simd-threaded.mjs": "threaded.js",
    "ort-wasm-simd-threaded.wasm": "threaded.wasm",
}


class NoRuntimeError(LitGeluError, FileNotFoundError):
    """onnxruntime-web is not installed."""


def build_explorer(folder: Path) -> None:
    """Assemble the explorer.

    Args:
        folder: Where it goes; what an earlier call put there is replaced.

    Raises:
        NoRuntimeError: If npm has not brought onnxruntime-web.
    """
    missing = [name for name in RUNTIME_FILES if not (RUNTIME / name).is_file()]
    if missing:
        raise NoRuntimeError(
            f"onnxruntime-web is not in examples/web/node_modules (no {', '.join(missing)}). Install it by `npm ci` in "
            "examples/web, or by `make browser`."
        )
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(PAGE, folder)
    (folder / "ort").mkdir()
    for name, known in RUNTIME_FILES.items():
        shutil.copyfile(RUNTIME / name, folder / "ort" / known)


def main() -> None:
    """Write the files if asked to, and assemble the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=OUTPUT, help="where the page goes")
    parser.add_argument("--models", action="store_true", help="export the ONNX files of docs/explorer/models")
    arguments = parser.parse_args()
    if arguments.models:
        from _explorer_files import write_models  # which loads the exporter; the site needs the page alone

        write_models(MODELS)
        print(f"wrote {MODELS}")
        return
    build_explorer(arguments.folder)
    print(f"{arguments.folder}: serve it, such as by `python -m http.server --directory {arguments.folder}`")


if __name__ == "__main__":
    main()
