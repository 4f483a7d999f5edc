#!/usr/bin/env bash
# Attaches a volume by the kernel's ublk, in a guest under QEMU whose kernel has it, and kills what serves it. Then has Debian's
# systemd run all units in such a guest, and shuts it down.
#
#   scripts/guest.sh     docs/design/testing.md says what it does; minutes
#
# As root on Debian it installs what that needs, and fetches a kernel and a Debian: they are unpacked, not installed, to
# /var/cache/netram/guest-kernel and guest-root. A kernel that NETRAM_GUEST_KERNEL names is used as it is. Root is told of what is missing by a
# failure; for others the test is skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
fetched=/var/cache/netram/guest-kernel
directory=${NETRAM_GUEST_KERNEL:-$fetched}
debian=/var/cache/netram/guest-root
# What the guest's Debian needs to have systemd as its first process, file systems, and a network.
inside=systemd,systemd-sysv,udev,dbus,kmod,iproute2,e2fsprogs
# Depends on the newest one of its kind.
latest=linux-image-6.12-cloud-amd64
# command, package
wanted=(
	"qemu-system-x86_64 qemu-system-x86"
	"mkfs.ext4 e2fsprogs"
	"blkdiscard util-linux"
	"insmod kmod"
	"fio fio"
	"debootstrap debootstrap"
)

missing=()
for line in "${wanted[@]}"; do
	read -r command package <<<"$line"
	command -v "$command" >/dev/null || missing+=("$package")
done
if ((EUID == 0)) && command -v apt-get >/dev/null; then
	export DEBIAN_FRONTEND=noninteractive
	if ((${#missing[@]})); then
		echo "guest: installing ${missing[*]}"
		apt-get update -q
		apt-get install -q -y --no-install-recommends "${missing[@]}"
	fi
	# What others name is theirs: nothing is put there, or removed.
	if [[ $directory == "$fetched" ]] && ! compgen -G "$directory/boot/vmlinuz-*" >/dev/null; then
		apt-get update -q
		depends=$(apt-cache depends --no-recommends "$latest" 2>/dev/null || true)
		package=$(sed -n 's/.*Depends: \(linux-image-[^ ]*\)/\1/p' <<<"$depends" | head -n 1)
		if [[ -z $package ]]; then
			echo "guest: this system's packages have no $latest" >&2
		else
			echo "guest: fetching $package"
			mkdir -p "$fetched"
			fresh=$(mktemp -d "$fetched/fresh.XXXXXX")
			trap 'rm -rf "$fresh"' EXIT
			(cd "$fresh" && apt-get download -q "$package" && dpkg -x ./*.deb root)
			rm -rf "$fetched/boot" "$fetched/lib"
			# The kernel last: it says that all is there.
			mv "$fresh/root/lib" "$fetched/lib"
			mv "$fresh/root/boot" "$fetched/boot"
		fi
	fi
	if [[ ! -e $debian ]]; then
		echo "guest: fetching Debian"
		mkdir -p "$(dirname "$debian")"
		unpacked=$(mktemp -d "$debian.XXXXXX")
		trap 'rm -rf "$unpacked" ${fresh:+"$fresh"}' EXIT
		debootstrap --variant=minbase --include="$inside" bookworm "$unpacked" >/dev/null
		rm -rf "$unpacked"/var/cache/apt/archives/*.deb
		mv "$unpacked" "$debian"
	fi
fi

said=$(mktemp)
trap 'rm -rf "$said" ${fresh:+"$fresh"} ${unpacked:+"$unpacked"}' EXIT
cargo test -q -p netram-cli --test all guest:: -- --ignored --nocapture 2>&1 | tee "$said"
if ((EUID == 0)) && grep -q SKIPPED "$said"; then
	echo "guest: a test was skipped; the line above says what it lacks" >&2
	exit 1
fi
