#!/bin/sh
# What the browser's tests need beside Python, where it is missing: Chromium with its WebDriver, npm, the packages of
# examples/web (onnxruntime-web) and tests/docs/explorer/axe (axe-core), Selenium. Says what it could not bring, and goes on: those tests are then skipped with that reason.
# Takes the folder with the environment's commands.
set -u
cd "$(dirname "$0")/../.."

system() { # system packages, by apt-get, as root
    if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
        echo "Install $* (this takes apt-get and root)." >&2
        return 1
    fi
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

have() { for name in "$@"; do command -v "$name" >/dev/null || return 1; done; }

have chromium chromedriver || system chromium chromium-driver || echo "No Chromium." >&2
have npm || system nodejs npm || echo "No npm." >&2
if have npm; then
    for folder in examples/web tests/docs/explorer/axe; do
        installed=$folder/node_modules/.package-lock.json # npm writes it last
        if [ ! -e "$installed" ] || [ "$folder/package-lock.json" -nt "$installed" ]; then
            (cd "$folder" && npm ci) || echo "No packages of $folder." >&2
        fi
    done
fi
# Not by '.[browser]', which would install the project anew.
extra='import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["browser"], sep="\n")'
"$1/python" -c 'import selenium' 2>/dev/null ||
    "$1/python" -c "$extra" | "$1/python" -m pip install --quiet --requirement /dev/stdin ||
    echo "No Selenium." >&2
exit 0
