#!/usr/bin/env bash
# In cargo's place for maturin, so that the Python package's library is the one that was built for testing, with
# everything else: cargo builds a package alone with other features than beside the workspace, and half the tree anew.
#
# `cargo rustc` is what maturin builds with. It becomes the build of `cargo xtask`, named in NETRAM_TEST_BUILD, in which
# nothing is left to do; maturin reads from its messages where the library is.
set -euo pipefail

if [[ ${1-} != rustc ]]; then
	exec cargo "$@"
fi
# Build scripts look at these, and would run anew.
unset "${!PYO3_@}" CARGO_ENCODED_RUSTFLAGS
read -ra build <<<"$NETRAM_TEST_BUILD"
exec cargo "${build[@]}" --quiet
