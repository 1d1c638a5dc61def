#!/bin/sh
# Packs a Python with streamkit for platforms that bring none: environment.sh s3 → streamkit-env.tar.gz
# Run it on the platform's own system, for example in its image: libraries are compiled for one system.
set -eu

cloud="${1:?s3 or azure}"
python="${PYTHON:-python3.11}"
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT

"$python" -m venv --copies "$folder/env"
"$folder/env/bin/pip" install --quiet venv-pack "${STREAMKIT:-streamkit}[archive,$cloud]"
"$folder/env/bin/venv-pack" --python-prefix "${PREFIX:-/home/hadoop/environment}" -o streamkit-env.tar.gz
echo "streamkit-env.tar.gz: upload it beside job.py"
