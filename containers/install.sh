#!/bin/sh
# install.sh SOURCE VENV [TORCH_INDEX] [EXTRAS]: the pinned versions of requirements/ and greenward in a new VENV.
# Both images run it. TORCH_INDEX is where torch's build is found, EXTRAS such as train,quality.
set -eu
source=$1 venv=$2 index=${3:-} extras=${4:-train,quality}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Hashes are left out: constraints may have none.
sed -e '/^ *--hash/d' -e 's/ *\\$//' "$source/requirements/lock.txt" >"$work/pins.txt"
python3 -m venv "$work/build"
"$work/build/bin/pip" install --quiet --no-cache-dir --constraint "$work/pins.txt" hatchling
"$work/build/bin/pip" wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work" "$source"
python3 -m venv "$venv"
set -- --quiet --no-cache-dir --constraint "$work/pins.txt" --constraint "$source/requirements/constraints.txt"
"$venv/bin/pip" install "$@" ${index:+--index-url "$index"} torch
"$venv/bin/pip" install "$@" "$(echo "$work"/greenward-*.whl)[$extras]"
