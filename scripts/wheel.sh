#!/usr/bin/env bash
# Builds the Python package's wheel into target/wheels, with a maturin of its own in target/python.
#
#   scripts/wheel.sh [PROFILE [DIRECTORY]]    cargo's profile (release) and where the wheel goes (target/wheels)
#
# Exit code 3: there is no Python that could (3.11 or newer, with venv).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

profile="${1:-release}"
target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
directory="$(realpath -m "${2:-$target/wheels}")"
venv="$target/python"

if ! python3 -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
	echo "wheel: no python3 of 3.11 or newer with venv (Debian: apt-get install python3 python3-venv)" >&2
	exit 3
fi
# One environment for building and testing, made anew when the list of its packages changes.
if ! cmp -s python/requirements.txt "$venv/requirements.txt"; then
	rm -rf "$venv"
	python3 -m venv "$venv"
	if ! "$venv/bin/pip" install --quiet --disable-pip-version-check -r python/requirements.txt; then
		echo "wheel: the packages of python/requirements.txt could not be installed" >&2
		exit 1
	fi
	cp python/requirements.txt "$venv/requirements.txt"
fi

# An older version's wheel must not be taken for this one.
rm -f "$directory"/netram-*.whl
cd python
"$venv/bin/maturin" build --quiet --locked --profile "$profile" --out "$directory"
ls "$directory"/netram-*.whl
