#!/bin/sh
# Installs librvm: `install.sh install|uninstall BUILT PREFIX [DESTDIR]`. BUILT holds librvm.so and librvm.a, and what
# `install.sh names BUILT` makes of them with a C compiler, so that installing needs none.
#
# The original came as three libraries in three variants (no threads, LWP, POSIX threads). All nine names are here one
# library, so that programs link and start by the names they know. Programs of old ask the loader for nine: its cache
# knows a file by the name inside it, so for eight there is a library that holds its name and asks for librvm.
set -eu

what=$1 built=$2 prefix=${3-} destdir=${4-}
here=$(cd "$(dirname "$0")" && pwd)
headers=$here/../../crates/bindings/librvm/include/rvm
lib=$destdir$prefix/lib include=$destdir$prefix/include/rvm
man=$destdir$prefix/share/man/man3 share=$destdir$prefix/share/netram

# Newer than the original's 1.2.9: where both are, the loader's cache takes this one.
version=1.3.0
real=librvm.so.$version
names="rvm seg rds rvmlwp seglwp rdslwp rvmpt segpt rdspt"
others=${names#rvm }
stubs=$built/librvm-names
packages="rvm rvmlwp rvmpt"

case $what in
names)
	command -v cc >/dev/null || {
		echo "install.sh: cc is missing; install a C compiler (gcc), which the library's build needs too" >&2
		exit 1
	}
	mkdir -p "$stubs"
	for name in $others; do
		cc -shared -nostdlib -x c /dev/null -x none -o "$stubs/lib$name.so.$version" \
			-Wl,-soname,"lib$name.so.1" -Wl,--no-as-needed "$built/librvm.so"
	done
	;;
install)
	for name in $others; do
		[ -e "$stubs/lib$name.so.$version" ] || {
			echo "install.sh: $stubs/lib$name.so.$version is missing; \`make build\` makes it" >&2
			exit 1
		}
	done
	install -D -m 755 "$built/librvm.so" "$lib/$real"
	install -D -m 644 "$built/librvm.a" "$lib/librvm.a"
	for name in $others; do
		install -m 755 "$stubs/lib$name.so.$version" "$lib/lib$name.so.$version"
		ln -sf librvm.a "$lib/lib$name.a"
	done
	for name in $names; do
		ln -sf "lib$name.so.$version" "$lib/lib$name.so.1"
		ln -sf librvm.so.1 "$lib/lib$name.so"
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
	rm -f "$man/rvm.3" "$share/librvm.supp"
	for name in $names; do
		rm -f "$lib/lib$name.so.$version" "$lib/lib$name.so.1" "$lib/lib$name.so" "$lib/lib$name.a"
	done
	for header in "$headers"/*.h; do
		rm -f "$include/${header##*/}"
	done
	for package in $packages; do
		rm -f "$lib/pkgconfig/$package.pc"
	done
	for directory in "$include" "$share"; do
		if [ -d "$directory" ]; then rmdir --ignore-fail-on-non-empty "$directory"; fi
	done
	;;
*)
	echo "install.sh: say names, install or uninstall, not $what" >&2
	exit 2
	;;
esac
