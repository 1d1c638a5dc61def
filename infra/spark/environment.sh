#!/bin/sh
# Packs streamkit for platforms that bring Python, but no packages: environment.sh s3 → streamkit-env.tar.gz
# STREAMKIT: a wheel of streamkit-store, or a checkout of it; else the checkout that this file is in.
# Run it on the platform's own system, for example in its image: libraries are compiled for one system, and the packed
# environment goes on using the Python at the same path.
set -eu

cloud="${1:?s3 or azure}"
streamkit="${STREAMKIT:-$(cd "$(dirname "$0")/../.." && pwd)}"
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT

"${PYTHON:-python3.11}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet venv-pack "${streamkit}[archive,$cloud]"
"$folder/env/bin/venv-pack" -o streamkit-env.tar.gz
echo "streamkit-env.tar.gz: upload it beside job.py"
