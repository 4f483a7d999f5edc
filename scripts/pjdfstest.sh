#!/usr/bin/env bash
# The suite `pjdfstest` on a mount and on the file system beneath it: what differs is printed, and fails unless docs/design/directories.md lists it.
#
#   scripts/pjdfstest.sh [PATTERN...]     names of tests, as chmod or rename; all of them unless said otherwise
#   ATTACH=--io-uring scripts/pjdfstest.sh     with further arguments of `netram mount attach`
#
# Needs root. Installs the suite below target/ from crates.io, at the version that this was made with. NETRAM names the program to test.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.2.2
root=$PWD/target/pjdfstest
suite=$root/bin/pjdfstest
((EUID == 0)) || {
	echo "pjdfstest: skipped: it needs root, to change users" >&2
	exit 0
}
[[ -e /dev/fuse ]] || {
	echo "pjdfstest: skipped: there is no /dev/fuse (\`modprobe fuse\`)" >&2
	exit 0
}
[[ -x $suite ]] || cargo install --quiet --root "$root" --version "$version" pjdfstest
if [[ -z ${NETRAM:-} ]]; then
	cargo build --quiet -p netram-cli --bin netram
	NETRAM=target/debug/netram
fi
NETRAM=$(realpath "$NETRAM")

# Not in /tmp, which may be memory.
work=$(mktemp -d /var/tmp/netram-pjdfstest.XXXXXX)
chmod 755 "$work"
dir=$work/mounted
lender=
clean() {
	"$NETRAM" mount detach "$dir" >/dev/null 2>&1 || umount -l "$dir" 2>/dev/null || true
	[[ -n $lender ]] && kill "$lender" 2>/dev/null
	wait 2>/dev/null || true
	chattr -R -i "$work" 2>/dev/null || true
	rm -rf "$work"
}
trap clean EXIT

mkdir "$dir" "$work/beneath"
"$NETRAM" lender serve --listen "unix:$work/lender" --insecure --memory 64MiB >"$work/lender.log" 2>&1 &
lender=$!
for _ in $(seq 100); do [[ -S $work/lender ]] && break || sleep 0.1; done
"$NETRAM" mount attach "$dir" --on "$work/journal" --journal-size 64MiB --lender "unix:$work/lender" --insecure --one-domain \
	--members 1 ${ATTACH:-} >"$work/mount.log" 2>&1 &
for _ in $(seq 100); do grep -q '^mounted ' "$work/mount.log" && break || sleep 0.1; done
grep -q '^mounted ' "$work/mount.log" || {
	cat "$work/mount.log" >&2
	exit 1
}

cat >"$work/pjdfstest.toml" <<-'TOML'
	[features]
	posix_fallocate = {}
	rename_ctime = {}
	utime_now = {}
	utimensat = {}
	[settings]
	naptime = 0.01
	allow_remount = false
	[dummy_auth]
	entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
TOML

# The lines of the tests that failed, without what differs from run to run.
run() {
	(umask 0 && cd "$1" && "$suite" -c "$work/pjdfstest.toml" -p "$1" "${@:2}") >"$1.out" 2>&1 || true
	sed -En 's/^ *([a-z_0-9]+::[A-Za-z_0-9:]+) .*(FAILED|failed).*$/\1/p' "$1.out" | sort -u >"$1.failed"
	tail -n 3 "$1.out"
}
echo "pjdfstest: the file system beneath"
run "$work/beneath" "$@"
echo "pjdfstest: the mount"
run "$dir" "$@"
cp "$dir.out" "$root/mounted.out"
cp "$work/beneath.out" "$root/beneath.out"

# What docs/design/directories.md lists between two marks, one to a line, and the kinds of nodes that a mount does not take.
sed -n '/<!-- pjdfstest -->/,/<!-- end -->/p' docs/design/directories.md | sed -En 's/^\| `([a-z_0-9:A-Z]+)` .*/\1/p' | sort -u >"$work/known"
comm -13 "$work/beneath.failed" "$dir.failed" >"$work/differ"
grep -E '::(block|char|fifo|socket)$' "$work/differ" >>"$work/known" || true
sort -u -o "$work/known" "$work/known"
echo "pjdfstest: $(wc -l <"$work/differ") tests fail on the mount and not beneath, $(comm -12 "$work/differ" "$work/known" | wc -l) of them listed"
new=$(comm -23 "$work/differ" "$work/known")
if [[ -n $new ]]; then
	echo "pjdfstest: not listed in docs/design/directories.md (what they say is in $root/mounted.out):" >&2
	echo "$new" >&2
	exit 1
fi
