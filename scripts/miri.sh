#!/usr/bin/env bash
# What runs without a kernel, in Miri: unit tests of the protocols, and of what records, catalogs and heaps are made of. Property tests draw few
# examples here, for each step costs a thousand.
#
#   scripts/miri.sh [CRATE...]     all of them unless said otherwise; skipped, audibly, where there is no Miri
set -uo pipefail
cd "$(dirname "$0")/.."

toolchain=${NETRAM_MIRI_TOOLCHAIN:-nightly}
cargo "+$toolchain" miri --version >/dev/null 2>&1 || {
	echo "SKIPPED: no Miri in the toolchain \`$toolchain\`: rustup component add miri rust-src --toolchain $toolchain" >&2
	exit 0
}
# Examples of a property test; and no file is looked for in which it would keep those that failed.
export PROPTEST_CASES=${PROPTEST_CASES:-4}
export MIRIFLAGS=${MIRIFLAGS:--Zmiri-strict-provenance -Zmiri-disable-isolation}

# A crate, and which of its tests: those that need mmap, sockets or many steps are left out.
chosen() {
	case $1 in
	netram-proto) echo "-- --skip tests::random --skip exhaustive" ;;
	netram-heap) echo "layout:: class:: pointer::" ;;
	netram-rvm) echo "record:: range:: granules:: table:: merge:: stamp::tests" ;;
	netram-files) echo "change:: names:: catalog::" ;;
	netram-disk) echo "record::" ;;
	netram-nbd) echo "handshake:: command::" ;;
	*) echo "" ;;
	esac
}

failed=()
for crate in "${@:-netram-proto netram-files netram-party netram-disk netram-rvm netram-heap}"; do
	for one in $crate; do
		tests=$(chosen "$one")
		# libtest takes several names behind `--`.
		# shellcheck disable=SC2086
		case $tests in
		--* | "") cargo "+$toolchain" miri test --quiet -p "$one" --lib $tests ;;
		*) cargo "+$toolchain" miri test --quiet -p "$one" --lib -- $tests ;;
		esac || failed+=("$one")
	done
done
((${#failed[@]} == 0)) || {
	echo "miri: failed: ${failed[*]}"
	exit 1
}
