#!/usr/bin/env bash
# Runs packaging/ansible for real: three lenders and a client, each a Debian of its own in a network of its own, and a
# database that commits to all of them. Needs root, debootstrap, Python, their package servers, and the packages of `make deb`
# (PACKAGES=DIR names others; ROOT=DIR is a Debian with systemd, python3 and sqlite3 to copy instead of making one).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
packages="$(realpath -m "${PACKAGES:-$target/debian}")"
tools="$target/ansible"
step() { echo "ansible-test: $*"; }
fail() { echo "ansible-test: FAILED: $*" >&2; exit 1; }
skip() { echo "ansible-test: skipped: $*" >&2; exit 3; }

prepare() {
	((EUID == 0)) || skip "not root"
	for command in debootstrap unshare ip python3; do
		command -v "$command" >/dev/null || skip "no \`$command\`: apt-get install debootstrap util-linux iproute2 python3-venv"
	done
	compgen -G "$packages/netram-lender_*.deb" >/dev/null || skip "no packages in $packages: make deb"
	if [[ ! -e $tools/complete ]]; then
		# With the collections, of which one has the connection to a chroot.
		{ python3 -m venv "$tools" && "$tools/bin/pip" install -q ansible ansible-lint; } || skip "no Ansible can be installed"
		touch "$tools/complete"
	fi
	work="$(mktemp -d /var/tmp/netram-ansible.XXXXXX)"
	trap 'rm -rf --one-file-system "$work"' EXIT
	if [[ -z ${ROOT:-} ]]; then
		ROOT="$work/debian"
		debootstrap --variant=minbase --include=systemd,python3,sqlite3 \
			"$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)" "$ROOT" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" \
			>"$work/log" 2>&1 || skip "debootstrap made no Debian: $(tail -n 1 "$work/log")"
	fi
	for host in ram1 ram2 ram3 db1; do cp -a --reflink=auto "$ROOT" "$work/$host"; done
	# Everything that it starts ends with this process.
	unshare --mount --pid --net --fork --kill-child --mount-proc -- "$0" inside "$work" "$packages" "$tools"
}

# A host's programs run in its network, and see its files only.
on() {
	local host=$1
	shift
	ip netns exec "$host" chroot "$work/$host" "$@"
}

until_true() {
	for _ in $(seq 600); do
		if "$@" >/dev/null 2>&1; then return; fi
		sleep 0.1
	done
	fail "this never became true: $*"
}

networks() {
	mount -t tmpfs none /run
	ip link set lo up
	ip link add bridge type bridge
	ip link set bridge up
	local last=1
	for host in db1 ram1 ram2 ram3; do
		ip netns add "$host"
		ip link add "$host" type veth peer name eth0 netns "$host"
		ip link set "$host" master bridge up
		ip -n "$host" link set lo up
		ip -n "$host" address add "10.99.0.$last/24" dev eth0
		ip -n "$host" link set eth0 up
		mount -t proc proc "$work/$host/proc"
		mount --bind /dev "$work/$host/dev"
		mount -t tmpfs tmpfs "$work/$host/dev/shm"
		last=$((last + 1))
	done
}

# What `make install DESTDIR=` makes, as far as a lender needs it.
stage() {
	local own="$work/stage/usr/local"
	mkdir -p "$own/bin" "$own/lib/systemd/system" "$own/lib/sysusers.d"
	dpkg-deb --fsys-tarfile "$packages"/netram-lender_*.deb | tar -x -O ./usr/bin/netram-lender >"$own/bin/netram-lender"
	chmod +x "$own/bin/netram-lender"
	dpkg-deb --fsys-tarfile "$packages"/netram-lender_*.deb | tar -x -O ./lib/systemd/system/netram-lender.service |
		sed 's|/usr/bin|/usr/local/bin|' >"$own/lib/systemd/system/netram-lender.service"
	cp packaging/netram.sysusers "$own/lib/sysusers.d/netram.conf"
}

inventory() {
	"$work/keys/netram" key create "$work/keys/cluster.key" >/dev/null
	cat >"$work/inventory.yml" <<-END
		netram_lenders:
		  hosts:
		    ram1: {netram_address: 10.99.0.2, netram_domain: ups-1}
		    ram2: {netram_address: 10.99.0.3, netram_domain: ups-2}
		    ram3: {netram_address: 10.99.0.4, netram_domain: ups-3, netram_packages: "", netram_stage: $work/stage}
		  vars: {netram_memory: 64MiB, netram_metrics: "0.0.0.0:9464", netram_settings: {NETRAM_KEEP_FREE: 0}}
		netram_clients:
		  hosts: {db1: {netram_prometheus_targets: /etc/netram/targets.json}}
		  vars: {netram_client_packages: [netram, netram-sqlite]}
		all:
		  vars:
		    ansible_connection: community.general.chroot
		    ansible_host: "$work/{{ inventory_hostname }}"
		    ansible_become: false
		    ansible_python_interpreter: /usr/bin/python3
		    netram_packages: $packages
		    netram_key: $work/keys/cluster.key
	END
}

# Runs the playbook, and prints how many tasks changed something, of all machines.
played() {
	ANSIBLE_HOME="$work/ansible" ANSIBLE_NOCOLOR=1 "$tools/bin/ansible-playbook" -i "$work/inventory.yml" \
		packaging/ansible/site.yml "$@" >"$work/played" 2>&1 || {
		cat "$work/played" >&2
		fail "ansible-playbook $*"
	}
	awk 'match($0, /changed=[0-9]+/) { all += substr($0, RSTART + 8, RLENGTH - 8) } END { print all + 0 }' "$work/played"
}

# Starts a lender as the unit that was installed does: by its command line, with its user and its file of settings.
lend() {
	local host=$1 unit line user
	unit="$(find "$work/$host"/{usr/local/,}lib/systemd/system -name netram-lender.service 2>/dev/null || true)"
	line="$(sed -n 's/^ExecStart=//p' "$unit")"
	user="$(sed -n 's/^User=//p' "$unit")"
	local run="set -a; NETRAM_LENDER_ARGS=; . /etc/default/netram-lender; exec $line"
	(exec ip netns exec "$host" chroot "$work/$host" env -i PATH="$PATH" HOME=/nonexistent \
		setpriv --reuid "$user" --regid "$user" --clear-groups --bounding-set=-all sh -c "$run") >"$work/$host.log" 2>&1 &
	lenders[$host]=$!
	until_true grep -qx ready "$work/$host.log"
}

sql() {
	on db1 sh -c 'cd /srv && exec sqlite3 -cmd ".load /usr/lib/netram/libnetram_sqlite" \
		-cmd ".open file:app.db?vfs=netram" :memory: "$@"' sql "$@"
}

# Whether so many lenders have a commit of the database that is open. The first may find them still joining.
committed_at() {
	echo "insert into t values (0);" >&3
	[[ $(on db1 netram status --json | grep -c '"last_append_age_ms": [0-9]') == "$1" ]]
}

inside() {
	work=$1 packages=$2 tools=$3
	declare -gA lenders
	set -E
	trap 'sed "s/^/ansible-test: /" "$work"/*.log >&2' ERR
	mkdir "$work/keys"
	dpkg-deb --fsys-tarfile "$packages"/netram_*.deb | tar -x -O ./usr/bin/netram >"$work/keys/netram"
	chmod +x "$work/keys/netram"
	networks
	stage
	inventory

	step "ansible-lint"
	(cd packaging/ansible && PATH="$tools/bin:$PATH" ansible-lint --offline -q site.yml) || fail "ansible-lint"
	step "a check changes nothing"
	played --check >/dev/null
	for host in ram1 ram2 ram3 db1; do
		[[ ! -e $work/$host/etc/netram && ! -e $work/$host/usr/bin/netram ]] || fail "$host was changed by a check"
	done
	step "set up three lenders and a client"
	[[ $(played) -gt 10 ]] || fail "nothing was set up"
	step "a second run changes nothing, and neither would a third"
	[[ $(played) == 0 && $(played --check) == 0 ]] || fail "$(cat "$work/played")"
	for host in ram1 ram2 ram3; do
		[[ $(on "$host" stat -c '%a %U' /etc/netram/key) == "400 netram" ]] || fail "the key of $host"
	done
	[[ $(on db1 stat -c '%a %U' /etc/netram/key) == "400 root" ]] || fail "the key of db1"
	[[ $(grep -c ':9464"' "$work/db1/etc/netram/targets.json") == 3 ]] || fail "the targets of Prometheus"

	step "a database commits to the lenders"
	for host in ram1 ram2 ram3; do lend "$host"; done
	on db1 netram status >/dev/null || fail "$(on db1 netram status 2>&1)"
	on db1 sh -c 'cd /srv && netram sqlite create app.db --lender auto --members 3 --domain ups-0' >/dev/null
	sql "create table t (n integer);"
	mkfifo "$work/statements"
	sql <"$work/statements" >"$work/sql.log" 2>&1 &
	local database=$!
	exec 3>"$work/statements"
	until_true committed_at 3
	step "and goes on without one of them"
	kill -9 "${lenders[ram1]}"
	wait "${lenders[ram1]}" 2>/dev/null || true
	echo "insert into t values (1);" >&3
	exec 3>&-
	wait "$database" || fail "$(cat "$work/sql.log")"
	[[ $(sql "select count(*) from t where n = 1;") == 1 ]] || fail "the last row is missing"
	step "a change reaches the lenders' settings, and nothing else"
	[[ $(played -e netram_memory=128MiB) == 3 ]] || fail "$(cat "$work/played")"
	step "passed"
}

declare -A lenders
if [[ ${1:-} == inside ]]; then inside "${@:2}"; else prepare; fi
