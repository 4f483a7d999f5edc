#!/usr/bin/env bash
# Packs what was built into Debian packages: `deb.sh [VERSION]` (default: the workspace's) makes target/debian/*.deb.
# `make deb` builds first. The packages are made by debhelper from packaging/debian; nothing is compiled here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
version="${1:-$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | sed -n 1p)}"
build="$target/debian/build"
stage="$build/stage"

for command in dh dpkg-gencontrol; do
	if ! command -v "$command" >/dev/null; then
		echo "deb: no \`$command\` (Debian: apt-get install debhelper)" >&2
		exit 3
	fi
done
wheel=("$target"/wheels/netram-*.whl)
if [[ ! -e ${wheel[0]} ]]; then
	echo "deb: no wheel in $target/wheels; \`make deb\` builds it" >&2
	exit 1
fi

rm -rf "$build"
mkdir -p "$stage/usr/lib/python3/dist-packages"
# Without STRIP: debhelper strips.
make --no-print-directory install install-lab PREFIX=/usr DESTDIR="$stage" STRIP= >/dev/null
install -D -m 755 "$target/release/netram-csi" "$stage/usr/bin/netram-csi"
python3 -m zipfile -e "${wheel[0]}" "$stage/usr/lib/python3/dist-packages"
# Debian's names and paths.
mv "$stage/usr/share/zsh/site-functions" "$stage/usr/share/zsh/vendor-completions"
install -d "$stage/lib"
mv "$stage/usr/lib/systemd" "$stage/lib/systemd"
# Packages have one each, of their own name.
rm "$stage/usr/lib/sysusers.d/netram.conf"
rm -rf "$stage"/usr/lib/python3/dist-packages/netram-*.dist-info/{RECORD,licenses}

cp -rL packaging/debian "$build/debian"
date="$(git log -1 --format=%cD 2>/dev/null || date -R)"
cat >"$build/debian/changelog" <<END
netram ($version) unstable; urgency=medium

  * Release $version.

 -- The netram authors <netram@users.noreply.github.com>  $date
END
rm -f "$target"/debian/*"_${version}_"*.deb
# Packages of debugging symbols are as large as all others, and take the most time: DEB_BUILD_OPTIONS= makes them.
export DEB_BUILD_OPTIONS="${DEB_BUILD_OPTIONS-noautodbgsym}"
# The files in the packages carry the date of the sources.
(cd "$build" && SOURCE_DATE_EPOCH="$(date -d "$date" +%s)" debian/rules binary >"$target/debian/log" 2>&1) || {
	tail -n 30 "$target/debian/log" >&2
	echo "deb: packing failed; everything that was said is in $target/debian/log" >&2
	exit 1
}
ls "$target"/debian/*"_${version}_"*.deb
