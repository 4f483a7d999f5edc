#!/bin/sh
# Installs librvm: `install.sh install|uninstall BUILT PREFIX [DESTDIR]`. BUILT holds librvm.so and librvm.a.
#
# The original came as three libraries in three variants (no threads, LWP, POSIX threads). All nine names are here one
# library, so that programs link and start by the names they know.
set -eu

what=$1 built=$2 prefix=$3 destdir=${4-}
here=$(cd "$(dirname "$0")" && pwd)
headers=$here/../../crates/capi/include/rvm
lib=$destdir$prefix/lib include=$destdir$prefix/include/rvm
man=$destdir$prefix/share/man/man3 share=$destdir$prefix/share/netram

# Newer than the original's 1.2.9: where both are, the loader's cache takes this one.
real=librvm.so.1.3.0
names="rvm seg rds rvmlwp seglwp rdslwp rvmpt segpt rdspt"
packages="rvm rvmlwp rvmpt"

case $what in
install)
	install -D -m 755 "$built/librvm.so" "$lib/$real"
	install -D -m 644 "$built/librvm.a" "$lib/librvm.a"
	for name in $names; do
		ln -sf "$real" "$lib/lib$name.so.1"
		ln -sf "lib$name.so.1" "$lib/lib$name.so"
		[ "$name" = rvm ] || ln -sf librvm.a "$lib/lib$name.a"
	done
	for header in "$headers"/*.h; do
		install -D -m 644 "$header" "$include/${header##*/}"
	done
	for package in $packages; do
		install -d "$lib/pkgconfig"
		sed "s|@prefix@|$prefix|; s|@package@|$package|" "$here/rvm.pc.in" >"$lib/pkgconfig/$package.pc"
		chmod 644 "$lib/pkgconfig/$package.pc"
	done
	install -D -m 644 "$here/rvm.3" "$man/rvm.3"
	install -D -m 644 "$here/librvm.supp" "$share/librvm.supp"
	;;
uninstall)
	rm -f "$lib/$real" "$lib/librvm.a" "$man/rvm.3" "$share/librvm.supp"
	for name in $names; do
		rm -f "$lib/lib$name.so.1" "$lib/lib$name.so" "$lib/lib$name.a"
	done
	for header in "$headers"/*.h; do
		rm -f "$include/${header##*/}"
	done
	for package in $packages; do
		rm -f "$lib/pkgconfig/$package.pc"
	done
	for folder in "$include" "$share"; do
		if [ -d "$folder" ]; then rmdir --ignore-fail-on-non-empty "$folder"; fi
	done
	;;
*)
	echo "install.sh: say install or uninstall, not $what" >&2
	exit 2
	;;
esac
