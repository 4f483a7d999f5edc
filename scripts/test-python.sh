#!/usr/bin/env bash
# Builds the Python package's wheel, installs it into target/python and tests it there: types, stubs, behaviour, and
# what the guide shows.
# Without Python it says so and skips. Arguments go to pytest: scripts/test-python.sh -k crash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
venv="$target/python"
export CARGO_TARGET_DIR="$target" PYTHONDONTWRITEBYTECODE=1

code=0
# What `cargo xtask` has built already is packed as it is.
[[ -z ${NETRAM_TEST_BUILD-} ]] || export CARGO="$PWD/scripts/built-cargo.sh"
# Not with the profile of all other tests: `cargo rustc`, which maturin runs, would make a test program of it.
scripts/wheel.sh dev "$venv/wheels" || code=$?
if ((code == 3)); then
	echo "test-python: SKIPPED, the Python package is neither built nor tested"
	exit 0
fi
((code == 0)) || exit "$code"
"$venv/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps "$venv"/wheels/netram-*.whl

# The lenders of the tests.
[[ -n ${NETRAM_TEST_BUILT-} ]] || cargo build --quiet --profile test -p netram-cli

mypy=(--config-file python/pyproject.toml --cache-dir "$venv/mypy")
MYPYPATH=python "$venv/bin/mypy" "${mypy[@]}" python/netram python/tests python/examples
"$venv/bin/python" -m mypy.stubtest netram --allowlist python/stubtest-allowlist.txt --ignore-unused-allowlist

# Pages of the guide wait most of the time, so they are typed beside the other tests.
pytest=("$venv/bin/pytest" -p no:cacheprovider --quiet)
"${pytest[@]}" python/tests/test_console.py "$@" >"$venv/pages.log" 2>&1 &
pages=$!
trap 'kill "$pages" 2>/dev/null || true' EXIT
others=0 typed=0
"${pytest[@]}" --ignore=python/tests/test_console.py python/tests "$@" || others=$?
wait "$pages" || typed=$?
cat "$venv/pages.log"
# pytest's code for no test of these arguments: one of both may have none.
none=5
((others == none && typed == none)) && exit "$none"
((others == 0 || others == none)) && ((typed == 0 || typed == none))
