#!/usr/bin/env bash
# Runs csi-sanity, Kubernetes' own test of storage drivers, against netram-csi: with two lenders, attached volumes, and
# ext4, xfs and a raw block device on them. Needs root and Go (csi-sanity takes 80 s of processor time to build, once).
# PROGRAMS=DIR takes `netram` and `netram-csi` from there instead of building them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VERSION=v5.6.0
target="${CARGO_TARGET_DIR:-target}"
sanity="$target/csi-sanity/csi-sanity"
fail() { echo "csi-test: $*" >&2; exit 1; }

((EUID == 0)) || fail "attaching volumes needs root: sudo make csi-test"
if [[ ! -x $sanity ]]; then
	command -v go >/dev/null || fail "no \`go\`, which builds csi-sanity: see https://go.dev/doc/install"
	mkdir -p "$target/csi-sanity"
	GOBIN="$(realpath "$target/csi-sanity")" go install "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity@$VERSION"
fi
programs="${PROGRAMS:-}"
if [[ -z $programs ]]; then
	cargo build -p netram-cli -p netram-csi
	programs="$target/debug"
fi
programs="$(realpath "$programs")"

work="$(mktemp -d /var/tmp/netram-csi-test.XXXXXX)"
export NETRAM_VOLUME_RUN="$work/run" NETRAM_STATE_DIR="$work/state" NETRAM_KEEP_FREE=0 NETRAM_PRESSURE=0
started=()
clean() {
	for process in "${started[@]}"; do kill "$process" 2>/dev/null || true; done
	for process in "${started[@]}"; do wait "$process" 2>/dev/null || true; done
	# Only a failed run leaves any of these.
	for target in "$work/mount/target" "$work/stage"; do umount "$target" 2>/dev/null || true; done
	for volume in "$work"/volumes/*; do "$programs/netram" volume detach "$volume" --force >/dev/null 2>&1 || true; done
	rm -rf "$work" /dev/shm/netram-csi-test-$$-[ab].mem
}
trap clean EXIT

lenders=()
for name in a b; do
	"$programs/netram" lender serve --insecure --listen "unix:$work/$name" --memory 256MiB --name "csi-test-$$-$name" \
		--store "/dev/shm/netram-csi-test-$$-$name.mem" >"$work/$name.log" 2>&1 &
	started+=($!)
	lenders+=("unix:$work/$name")
	until grep -qs '^ready' "$work/$name.log"; do
		kill -0 "${started[-1]}" 2>/dev/null || fail "a lender ended: $(cat "$work/$name.log")"
		sleep 0.1
	done
done
"$programs/netram-csi" serve --endpoint "unix://$work/socket" --node-id here --directory "$work/volumes" \
	--netram "$programs/netram" 2>"$work/driver.log" &
driver=$!
started+=("$driver")
until [[ -S $work/socket ]]; do
	kill -0 "$driver" 2>/dev/null || fail "the driver ended: $(cat "$work/driver.log")"
	sleep 0.1
done

# Runs all tests on a file system, or on none: KIND ACCESS [FLAGS].
run() {
	local kind="$1" access="$2"
	shift 2
	{
		echo "lenders: \"${lenders[0]},${lenders[1]}\""
		printf '%s\n' 'insecure: "true"' 'oneDomain: "true"' 'journalSize: 16MiB' "fsType: $kind"
	} >"$work/class.yaml"
	echo "csi-test: $access volumes, $kind"
	"$sanity" --ginkgo.no-color --csi.endpoint "unix://$work/socket" --csi.mountdir "$work/mount" \
		--csi.stagingdir "$work/stage" --csi.testvolumeparameters "$work/class.yaml" \
		--csi.testvolumeaccesstype "$access" --csi.testvolumesize $((320 << 20)) \
		--csi.testvolumeexpandsize $((384 << 20)) "$@" || {
		tail -n 40 "$work/driver.log" >&2
		fail "csi-sanity found faults"
	}
}

skip=()
# Bit 24 of the effective capabilities.
if ! ((16#$(sed -n 's/^CapEff:\t//p' /proc/self/status) >> 24 & 1)); then
	echo "csi-test: SKIPPED on ext4: growing it while it is mounted needs CAP_SYS_RESOURCE, which this machine withholds"
	skip=(--ginkgo.skip "should work if node-expand is called after node-publish")
fi
run ext4 mount "${skip[@]}"
run ext4 block
if command -v mkfs.xfs >/dev/null && command -v xfs_growfs >/dev/null; then
	run xfs mount
else
	echo "csi-test: SKIPPED: no \`mkfs.xfs\` (package xfsprogs)"
fi
