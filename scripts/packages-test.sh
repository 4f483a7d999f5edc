#!/usr/bin/env bash
# Judges target/debian/*.deb by lintian, then has them installed, used, upgraded, removed and purged in a Debian that
# debootstrap makes. `make packages-test` builds them first. Needs root, debootstrap, lintian, and a mirror of Debian for the
# packages that ours need (DEBIAN_MIRROR); everything of netram runs in namespaces without a network.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
version="$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | sed -n 1p)"
# The next version, of the same programs.
next="$version+next"
mirror="${DEBIAN_MIRROR:-http://deb.debian.org/debian}"
suite="$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)"

skip() {
	echo "packages-test: skipped: $*" >&2
	exit 3
}
((EUID == 0)) || skip "not root"
for command in debootstrap lintian unshare; do
	command -v "$command" >/dev/null || skip "no \`$command\`: apt-get install debootstrap lintian util-linux"
done
compgen -G "$target/debian/netram_${version}_*.deb" >/dev/null || scripts/deb.sh
root="$(mktemp -d)"
# Its users go through it.
chmod 755 "$root"
trap 'rm -rf --one-file-system "$root"' EXIT
mkdir -p "$root/packages/old" "$root/packages/new"
for package in "$target"/debian/*_"${version}"_*.deb; do
	# Packages of debugging symbols are debhelper's own, and large.
	[[ $package == *-dbgsym_* ]] || cp "$package" "$root/packages/old"
done

# Errors fail; what is overridden says why in packaging/debian/*.lintian-overrides.
lintian --fail-on error --allow-root "$root"/packages/old/*.deb

debootstrap --variant=minbase "$suite" "$root" "$mirror" >"$target/debian/debootstrap-log" 2>&1 || {
	tail -n 5 "$target/debian/debootstrap-log" >&2
	skip "debootstrap made no Debian from $mirror"
}
# Services that Debian's packages bring are not started.
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod +x "$root/usr/sbin/policy-rc.d"
# What ours need of Debian, while there is a network.
DEBIAN_FRONTEND=noninteractive chroot "$root" apt-get install -q -y --no-install-recommends \
	systemd procps sqlite3 python3 fuse3 iproute2 >"$target/debian/apt-log" 2>&1 || {
	tail -n 5 "$target/debian/apt-log" >&2
	skip "apt could not install what the packages need"
}
NETRAM_DPKG_DEB=-Znone scripts/deb.sh "$next" >/dev/null
mv "$target"/debian/*_"${next}"_*.deb "$root/packages/new"
rm -f "$root"/packages/new/*-dbgsym_*
install -m 755 scripts/packages-inside.sh "$root/packages/inside.sh"

# Everything that it starts ends with this process.
unshare --mount --pid --net --fork --kill-child -- bash -c '
	set -e
	mount -t proc proc "$0/proc"
	mount --rbind /dev "$0/dev"
	mount -t tmpfs tmpfs "$0/dev/shm"
	mount -t tmpfs tmpfs "$0/run"
	exec chroot "$0" /packages/inside.sh "$1" "$2"
' "$root" "$version" "$next"
echo "packages-test: installed, used, upgraded, removed and purged"
