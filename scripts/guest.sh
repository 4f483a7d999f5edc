#!/usr/bin/env bash
# Attaches a volume by the kernel's ublk, in a guest under QEMU whose kernel has it, and kills what serves it.
#
#   scripts/guest.sh     docs/testing.md says what it does; minutes
#
# As root on Debian it installs what that needs, and fetches a kernel: the package is unpacked, not installed, to
# NETRAM_GUEST_KERNEL or /var/cache/netram/guest-kernel. Elsewhere what is missing is said, and the test skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
folder=${NETRAM_GUEST_KERNEL:-/var/cache/netram/guest-kernel}
# Depends on the newest one of its kind.
latest=linux-image-6.12-cloud-amd64
# command, package
wanted=(
	"qemu-system-x86_64 qemu-system-x86"
	"mkfs.ext4 e2fsprogs"
	"blkdiscard util-linux"
	"insmod kmod"
	"fio fio"
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
	if ! compgen -G "$folder/boot/vmlinuz-*" >/dev/null; then
		apt-get update -q
		depends=$(apt-cache depends --no-recommends "$latest" 2>/dev/null || true)
		package=$(sed -n 's/.*Depends: \(linux-image-[^ ]*\)/\1/p' <<<"$depends" | head -n 1)
		if [[ -z $package ]]; then
			echo "guest: this system's packages have no $latest" >&2
		else
			echo "guest: fetching $package"
			mkdir -p "$folder"
			fresh=$(mktemp -d "$folder/fresh.XXXXXX")
			trap 'rm -rf "$fresh"' EXIT
			(cd "$fresh" && apt-get download -q "$package" && dpkg -x ./*.deb root)
			rm -rf "$folder/boot" "$folder/lib"
			# The kernel last: it says that all is there.
			mv "$fresh/root/lib" "$folder/lib"
			mv "$fresh/root/boot" "$folder/boot"
		fi
	fi
fi

cargo test -q -p netram --test guest -- --ignored --nocapture
