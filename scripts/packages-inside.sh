#!/usr/bin/env bash
# The half of packages-test.sh that runs inside the Debian: `packages-inside.sh VERSION NEXT`.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
version=$1 next=$2
packages="netram-lender netram netram-csi netram-sqlite librvm1 librvm-dev python3-netram netram-lab"

step() {
	echo "packages-test: $*"
}
fail() {
	echo "packages-test: FAILED: $*" >&2
	exit 1
}
apt() {
	apt-get -q -y --no-install-recommends -o Dpkg::Use-Pty=0 "$@" >/tmp/apt-log 2>&1
}
ok() {
	"$@" || {
		cat /tmp/apt-log >&2
		fail "$*"
	}
}
# Nothing may remove the package now, and the refusal has these words in it.
refused() {
	local package=$1 words=$2
	if apt purge "$package"; then fail "$package was purged while it was in use"; fi
	grep -q "$words" /tmp/apt-log || {
		cat /tmp/apt-log >&2
		fail "the refusal does not say: $words"
	}
	dpkg-query -W -f '${Status}' "$package" | grep -q ' installed$' || fail "$package is broken after a refusal"
}
until_true() {
	for _ in $(seq 600); do
		if "$@" 2>/dev/null; then return; fi
		sleep 0.1
	done
	tail -n 5 /tmp/lender-* >&2 || true
	fail "this never became true: $*"
}

step "install $version"
ok apt install /packages/old/*.deb
id netram >/dev/null || fail "there is no user netram"
for program in netram netram-lender netram-csi netram-lab; do
	"$program" --version | grep -qx "$program $version" || fail "$program --version"
done
# minbase keeps no pages on the disk: those of the package are asked for.
for page in man1/netram.1.gz man1/netram-volume-attach.1.gz man8/netram-lender.8.gz man8/netram-lender-serve.8.gz; do
	dpkg-query -S "/usr/share/man/$page" >/dev/null || fail "there is no page $page"
done
mkdir /tmp/units
cp /lib/systemd/system/netram-* /tmp/units
for template in /tmp/units/*@.*; do
	# Only an instance of a template can be verified.
	if [[ -e $template ]]; then mv "$template" "${template/@/@srv-db}"; fi
done
for unit in /tmp/units/*; do
	systemd-analyze verify --man=no "$unit" >/tmp/said 2>&1 || fail "$unit: $(cat /tmp/said)"
done
[[ -e /usr/share/netram/prometheus/netram.rules.yml ]] || fail "there are no rules for Prometheus"
python3 -c 'import netram' || fail "import netram"
python3 -c 'import ctypes; [ctypes.CDLL(f"lib{name}.so.1") for name in ("rvm", "rds", "segpt")]' || fail "librvm"

step "lenders serve, and a database commits to them"
ip link set lo up
mkdir -p /etc/netram
netram-lender key create /etc/netram/key >/dev/null
install -m 400 /etc/netram/key /root/key
chown netram: /etc/netram/key
lenders=()
for number in 1 2; do
	setpriv --reuid netram --regid netram --clear-groups netram-lender serve --listen "tcp://127.0.0.1:742$number" \
		--key-file /etc/netram/key --memory 64MiB --domain "ups-$number" --store "/dev/shm/lender-$number" \
		>"/tmp/lender-$number" 2>&1 &
	lenders+=($!)
	until_true grep -qx ready "/tmp/lender-$number"
done
export NETRAM_KEY_FILE=/root/key NETRAM_LENDERS=tcp://127.0.0.1:7421,tcp://127.0.0.1:7422
mkdir /srv/data
cd /srv/data
netram sqlite create app.db --domain ups-0 >/dev/null
extension='.load /usr/lib/netram/libnetram_sqlite'
sql() {
	sqlite3 -cmd "$extension" -cmd '.open file:app.db?vfs=netram' :memory: "$@"
}
sql 'create table t (n integer); insert into t values (1), (2);'
[[ $(sql 'select count(*) from t') == 2 ]] || fail "the database does not have its rows"

step "what is in use is not removed"
mkfifo /tmp/hold
sqlite3 -cmd "$extension" -cmd '.open file:app.db?vfs=netram' :memory: </tmp/hold &
holder=$!
exec 3>/tmp/hold
# The first commits may find the lenders still joining; the disk has those.
committed_at_both() {
	echo 'delete from t where n = 3; insert into t values (3);' >&3
	[[ $(netram lender status --json | grep -c '"last_append_age_ms": [0-9]') == 2 ]]
}
until_true committed_at_both
refused netram-sqlite "End the processes that have it loaded: $holder"
exec 3>&-
wait "$holder"
if [[ -c /dev/fuse ]]; then
	mkdir app
	netram mount attach app --on app.journal --domain ups-0 --background >/dev/null
	echo kept >app/file
	refused netram "netram mount detach /srv/data/app"
	[[ $(cat app/file) == kept ]] || fail "the refusal touched the mount"
	netram mount detach app >/dev/null
else
	step "no /dev/fuse: not tried with a mounted directory"
fi
if [[ -c /dev/fuse && -c /dev/loop-control ]]; then
	device=packages-test-$$
	netram volume create db --size 64MiB >/dev/null
	netram volume attach db --name "$device" --way fuse >/dev/null
	echo kept | dd of="/dev/netram/$device" bs=4096 conv=sync,fsync status=none
	refused netram "volume $device: netram volume detach $device"
	[[ $(head -n 1 "/dev/netram/$device") == kept ]] || fail "the refusal touched the volume"
	netram volume detach "$device" >/dev/null
else
	step "no /dev/fuse or no loop devices: not tried with an attached volume"
fi

step "upgrade to $next"
echo 'NETRAM_LENDER_ARGS="--memory 64MiB"' >/etc/default/netram-lender
ok apt install /packages/new/*.deb
[[ $(dpkg-query -W -f '${Version}' netram-lender) == "$next" ]] || fail "no upgrade"
for lender in "${lenders[@]}"; do
	kill -0 "$lender" || fail "the upgrade ended a lender"
done
[[ $(sql 'insert into t values (4); select count(*) from t;') == 4 ]] || fail "the database after the upgrade"
grep -q 64MiB /etc/default/netram-lender || fail "the upgrade lost the settings"

step "remove and purge"
# The first signal would wait until the database has moved away.
kill "${lenders[@]}"
kill "${lenders[@]}" 2>/dev/null || true
wait "${lenders[@]}" || true
ok apt remove $packages
[[ -e /etc/default/netram-lender ]] || fail "remove took the settings"
install -d -o netram /var/lib/netram/spill /var/lib/netram/kept
touch /var/lib/netram/spill/window
# apt knows a removed package no more if no archive has it.
dpkg --purge $packages >/tmp/apt-log 2>&1 || ok false
grep -q "/var/lib/netram/spill holds bytes of other machines and is kept" /tmp/apt-log || fail "purge hides a spill"
[[ -e /var/lib/netram/spill/window && ! -e /var/lib/netram/kept ]] || fail "purge took what clients may need"
rm -r /var/lib/netram
if dpkg-query -W $packages 2>/dev/null | grep .; then fail "packages are left"; fi
# The key is the operator's, who made it.
left=$(find /etc /opt /usr /var -xdev \( -name '*netram*' -o -name '*librvm*' \) ! -path /etc/netram)
[[ -z $left ]] || fail "left after a purge: $left"
