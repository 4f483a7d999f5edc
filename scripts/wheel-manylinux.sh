#!/usr/bin/env bash
# Builds the Python package's wheel for every Linux with glibc 2.17 or newer, into target/wheels-manylinux: linked by zig,
# which knows old versions of glibc. auditwheel judges it; then a fresh environment gets it, and commits to two lenders.
#
# Exit code 3: there is no Python that could (3.11 or newer, with venv).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
directory="$target/wheels-manylinux"
venv="$target/release-tools"
policy=manylinux_2_17
platform="$(rustc -vV | sed -n 's/^host: //p')"

fail() {
	echo "wheel-manylinux: $*" >&2
	exit 1
}
if ! python3 -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
	echo "wheel-manylinux: no python3 of 3.11 or newer with venv (Debian: apt-get install python3 python3-venv)" >&2
	exit 3
fi
if ! cmp -s python/requirements-release.txt "$venv/requirements.txt"; then
	rm -rf "$venv"
	python3 -m venv "$venv"
	"$venv/bin/pip" install --quiet --disable-pip-version-check -r python/requirements-release.txt ||
		fail "the packages of python/requirements-release.txt could not be installed"
	cp python/requirements-release.txt "$venv/requirements.txt"
fi

rm -f "$directory"/netram-*.whl
# With its platform named, nothing built for this machine alone is taken.
(cd python && PATH="$venv/bin:$PATH" CARGO_TARGET_DIR="$target" "$venv/bin/maturin" build --quiet --locked --release \
	--target "$platform" --zig --compatibility "$policy" --out "$directory")
wheel=("$directory"/netram-*.whl)

said="$("$venv/bin/auditwheel" show "${wheel[0]}" | tr '\n' ' ')"
[[ $said == *"\"${policy}_$(uname -m)\""* ]] || fail "auditwheel finds more than $policy in it: $said"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-index "${wheel[0]}"
[[ -x $target/release/netram ]] || fail "no $target/release/netram, whose lenders it could commit to: make build"
cat >"$work/commit.py" <<'END'
import netram

store = netram.open("try.log", create=True)
store.wait_for_lenders(60)
count = memoryview(store.segment("try.data", size="1MiB", create=True).map())
with store.transaction() as tx:
    tx.set_range(count[:1])
    count[0] += 1
print(count[0], tx.result.lenders)
END
# Elsewhere than in the tree, whose python/netram would be found first.
said="$(cd "$work" && "$target/release/netram" play --memory 32MiB -- \
	sh -c '"$1" commit.py && "$1" commit.py' sh "$work/venv/bin/python" 2>"$work/log" | grep '^[0-9]' | tr '\n' ' ')" ||
	fail "it does not commit: $(cat "$work/log")"
[[ $said == "1 2 2 2 " ]] || fail "it does not commit to two lenders: $said $(cat "$work/log")"
echo "${wheel[0]}"
