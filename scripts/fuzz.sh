#!/usr/bin/env bash
# Fuzzing with feedback: libFuzzer feeds every target of fuzz/checks for an equal part of the time. docs/design/testing.md says what they are.
#
#   scripts/fuzz.sh [SECONDS] [TARGET...]      ten minutes and all targets unless said otherwise
#
# It needs the ordinary toolchain and a C++ compiler, no cargo-fuzz. What was learnt stays in fuzz/work, so that the next run goes on from
# there; NETRAM_FUZZ_WORK names another directory. NETRAM_FUZZ_RUNS ends each target after so many executions, NETRAM_FUZZ_WHOSE=stranger takes
# the targets of that kind only.
set -uo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-600}
[[ $seconds =~ ^[0-9]+$ ]] || {
	echo "fuzz: \`$seconds\` is no number of seconds" >&2
	exit 2
}
shift
command -v c++ >/dev/null || {
	echo "fuzz: libFuzzer is C++ and is compiled here: install a C++ compiler (g++ or clang)" >&2
	exit 2
}
mapfile -t known < <(basename -s .rs -a fuzz/fuzz_targets/*.rs)
targets=("${@:-${known[@]}}")
for target in "${targets[@]}"; do
	[[ " ${known[*]} " == *" $target "* ]] || {
		echo "fuzz: there is no target \`$target\`; there are ${known[*]}" >&2
		exit 2
	}
done

# In this directory, for the sake of its .cargo/config.toml.
(cd fuzz && cargo build --release --quiet) || exit 1
programs=$(cd fuzz && cargo metadata --format-version 1 --no-deps --offline | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
programs=$programs/$(rustc -vV | sed -n 's/^host: //p')/release
work=${NETRAM_FUZZ_WORK:-fuzz/work}
mkdir -p "$work"

if [[ -n ${NETRAM_FUZZ_WHOSE:-} ]]; then
	chosen=()
	for target in "${targets[@]}"; do
		NETRAM_FUZZ_SEEDS=$work/$target "$programs/$target" -runs=0 >"$work/$target.log" 2>&1
		[[ $(cat "$work/$target.whose") == "$NETRAM_FUZZ_WHOSE" ]] && chosen+=("$target")
	done
	targets=("${chosen[@]}")
fi
share=$((seconds / ${#targets[@]}))
((share > 0)) || share=1

last() {
	grep -oE "$2" "$work/$1.log" | tail -1 | grep -oE '[0-9]+' | head -1
}

failed=()
printf '%-18s %12s %10s %8s %9s %7s\n' target executions 'a second' edges features corpus
for target in "${targets[@]}"; do
	cases=fuzz/cases/$target
	mkdir -p "$cases" "$work/$target"
	NETRAM_FUZZ_SEEDS=$work/$target "$programs/$target" -runs=0 >"$work/$target.log" 2>&1
	"$programs/$target" -max_len="$(cat "$work/$target.max_len")" -max_total_time="$share" -runs="${NETRAM_FUZZ_RUNS:--1}" \
		-print_final_stats=1 -artifact_prefix="$cases/" "$work/$target" "$cases" >"$work/$target.log" 2>&1
	status=$?
	printf '%-18s %12s %10s %8s %9s %7s\n' "$target" "$(last "$target" 'number_of_executed_units: *[0-9]+')" \
		"$(last "$target" 'average_exec_per_sec: *[0-9]+')" "$(last "$target" 'cov: [0-9]+')" "$(last "$target" 'ft: [0-9]+')" \
		"$(last "$target" 'corp: [0-9]+')"
	rmdir "$cases" 2>/dev/null
	if ((status != 0)); then
		failed+=("$target")
		case=$(grep -oE 'written to .*' "$work/$target.log" | tail -1 | sed 's/written to //')
		grep -E 'panicked|ERROR' -A1 "$work/$target.log" | head -4
		echo "fuzz: $target failed on ${case:-an input that $work/$target.log tells of}; keep the file, and replay it with"
		echo "  cargo test -p netram-fuzz-checks --test replay every_case -- --nocapture"
		echo "  or with more of its story: $programs/$target ${case:-}"
	fi
done
if ((${#failed[@]} > 0)); then
	echo "fuzz: failed: ${failed[*]}"
	exit 1
fi
