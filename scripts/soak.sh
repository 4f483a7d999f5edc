#!/usr/bin/env bash
# Everything that can go on for as long as it is let, one after the other; docs/design/testing.md says what each does.
#
#   scripts/soak.sh [SECONDS] [PART...]     an hour unless said otherwise, shared equally; parts: sim nbd rvm faults refused constrained mount databases survival sqlite guest users c operators journals far
#
# A part that fails does not stop the others: the last lines say which failed, and the output above how to repeat it.
set -uo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-3600}
[[ $seconds =~ ^[0-9]+$ ]] || {
	echo "soak: \`$seconds\` is no number of seconds" >&2
	exit 2
}
shift
known=(sim nbd rvm faults refused constrained mount databases survival sqlite guest users c operators journals far)
parts=("${@:-${known[@]}}")
for part in "${parts[@]}"; do
	[[ " ${known[*]} " == *" $part "* ]] || {
		echo "soak: there is no part \`$part\`; there are ${known[*]}" >&2
		exit 2
	}
done
share=$((seconds / ${#parts[@]}))

# Runs a command again and again until this part's time is over, or until it fails.
again() {
	local until=$((SECONDS + share))
	while :; do
		"$@" || return 1
		((SECONDS < until)) || return 0
	done
}

# Other worlds each time; a failing seed is printed with the command that replays it.
worlds() {
	cargo xtask sim --seeds 2000 --from $((RANDOM * 32768 * 2000 + RANDOM * 2000))
}

# Each database on each ground has an equal part, of rounds that take most of a second.
databases() {
	kills a_thousand_kills
}

# Only the servers of mounts are killed, under databases that go on; a round takes less than half a second.
survival() {
	share=$((share * 2)) kills notices_no_thousand
}

kills() {
	local test=(cargo test -q -p netram-cli --test all "$1" -- --ignored --test-threads 1)
	local count
	count=$("${test[@]}" --list | grep -c ': test$') || return 1
	NETRAM_KILL_ROUNDS=$((share / count + 1)) "${test[@]}" --nocapture
}

part() {
	case $1 in
	sim) again worlds ;;
	nbd) NETRAM_SECONDS=$share cargo test -q --release -p netram-nbd --test all hostile:: -- --ignored --nocapture ;;
	rvm) cargo run -q --release -p netram-lab -- bash --for "${share}s" ;;
	faults) again cargo test -q -p netram-cli --test all faults:: ;;
	refused) cargo test -q -p netram-cli --test all faults::refused -- --ignored ;;
	constrained) again scripts/constrained.sh ;;
	sqlite) NETRAM_KILL_ROUNDS=$share again cargo test -q -p netram-cli --test all sqlite:: -- --include-ignored --skip thousands_of_rounds ;;
	mount) scripts/pjdfstest.sh && NETRAM_TEST_KILL_SECONDS=$((share / 2)) cargo test -q -p netram-mount random && again cargo test -q -p netram-cli --test all mount:: -- --include-ignored ;;
	databases) databases ;;
	survival) survival ;;
	guest) again cargo test -q -p netram-cli --test all guest:: -- --include-ignored ;;
	users) scripts/users.sh "$share" ;;
	operators) again cargo test -q -p netram-volume --test all proof:: -- --include-ignored ;;
	journals) cargo test -q -p netram-journal --release --test all closing:: -- --ignored ;;
	far) cargo build -q --release -p netram-preload && cargo test -q --release -p netram-lab --test all far_compared:: -- --ignored ;;
	c) again cargo test -q -p librvm --test all shared -- --include-ignored ;;
	esac
}

failed=()
for part in "${parts[@]}"; do
	echo "soak: $part, for $share s and as long as what is under way then takes"
	part "$part" || failed+=("$part")
done
if ((${#failed[@]})); then
	echo "soak: failed: ${failed[*]}" >&2
	exit 1
fi
echo "soak: ${parts[*]}: nothing was found"
