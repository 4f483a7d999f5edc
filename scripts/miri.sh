#!/usr/bin/env bash
# What runs without a kernel, in Miri: unit tests of the wire's and the journal's formats. The machines' own tests take a thousand times as long
# there as elsewhere, and have no `unsafe` code; arguments name more of them.
#
#   scripts/miri.sh [TEST...]     skipped, audibly, where there is no Miri
set -uo pipefail
cd "$(dirname "$0")/.."

toolchain=${NETRAM_MIRI_TOOLCHAIN:-nightly}
cargo "+$toolchain" miri --version >/dev/null 2>&1 || {
	echo "SKIPPED: no Miri in the toolchain \`$toolchain\`: rustup component add miri rust-src --toolchain $toolchain" >&2
	exit 0
}
# Few examples of a property.
export PROPTEST_CASES=${PROPTEST_CASES:-4}
export MIRIFLAGS=${MIRIFLAGS:--Zmiri-strict-provenance -Zmiri-disable-isolation}
tests=("$@")
(($# > 0)) || tests=(wire:: session:: journal::view journal::reigns journal::note journal::rule)
exec cargo "+$toolchain" miri test --quiet -p netram-proto --lib -- "${tests[@]}"
