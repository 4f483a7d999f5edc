#!/usr/bin/env bash
# The tests of journal, volume and lender where little is allowed: with 256 descriptors, and as an ordinary user.
#
#   scripts/constrained.sh [PACKAGE...]     packages: netram-journal netram-lender netram-volume unless said otherwise
#
# As root it does both, as another user only what that user can. Test programs are built as whoever calls this, and run with
# the limit or as the user `nobody`, in a directory of its own that is gone afterwards. A machine that lacks prlimit or setpriv
# skips that half, audibly.
set -uo pipefail
cd "$(dirname "$0")/.."

descriptors=256
packages=("${@:-netram-journal netram-lender netram-volume}")
read -ra packages <<<"${packages[*]}"

arguments=()
for package in "${packages[@]}"; do
	arguments+=(-p "$package")
done
# One line a test program: the package's directory, where its tests expect to be, and the program.
built=$(cargo test --no-run --message-format json "${arguments[@]}" 2>/dev/null |
	sed -n 's/.*"manifest_path":"\([^"]*\)\/Cargo.toml".*"profile":{[^}]*"test":true}.*"executable":"\([^"]*\)".*/\1 \2/p')
[[ -n $built ]] || {
	echo "constrained: cargo built no test program; see: cargo test --no-run ${arguments[*]}" >&2
	exit 1
}

failed=()
# Runs every test program behind the command given.
each() {
	local what=$1 directory program
	shift
	while read -r directory program; do
		(cd "$directory" && "$@" "$program" --quiet --test-threads 2) >"$log" 2>&1 && continue
		cat "$log"
		failed+=("$what: $(basename "$program")")
	done <<<"$built"
}

log=$(mktemp)
scratch=$(mktemp -d)
trap 'rm -rf "$log" "$scratch"' EXIT

if command -v prlimit >/dev/null; then
	echo "constrained: with $descriptors descriptors"
	each "$descriptors descriptors" prlimit --nofile=$descriptors:$descriptors
else
	echo "SKIPPED: no prlimit here, so nothing is run with $descriptors descriptors" >&2
fi

if [[ $(id -u) != 0 ]]; then
	echo "constrained: this is an ordinary user already"
elif command -v setpriv >/dev/null; then
	echo "constrained: as an ordinary user"
	chmod 755 "$scratch"
	install -d -o nobody -m 700 "$scratch/home"
	# The user need not be able to enter the directories above the programs.
	install -d -m 755 "$scratch/programs"
	copied=''
	while read -r directory program; do
		install -m 755 "$program" "$scratch/programs/"
		copied+="$scratch/home $scratch/programs/$(basename "$program")"$'\n'
	done <<<"$built"
	built=${copied%$'\n'}
	each 'ordinary user' setpriv --reuid nobody --regid nogroup --clear-groups --inh-caps=-all --bounding-set=-all \
		env HOME="$scratch/home" TMPDIR="$scratch/home"
else
	echo "SKIPPED: no setpriv here, so nothing is run as an ordinary user" >&2
fi

if ((${#failed[@]})); then
	printf 'constrained: failed: %s\n' "${failed[@]}" >&2
	exit 1
fi
echo "constrained: nothing failed"
