#!/bin/sh
# The guest's first process: what a kernel needs to be of use, then commands from the console, one a line.
# Its root is the host's, read-only, so every program of the host is there; /run is the guest's own memory.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs run /run
mkdir /run/mount
# Only what is said on purpose is for the console.
dmesg --console-level 1
stty -echo
modules=/usr/lib/uml/modules/$(uname -r)/kernel
for driver in drivers/block/nbd drivers/block/loop fs/fuse/fuse; do
	insmod "$modules/$driver.ko"
done
ip link set lo up
if [ -e /sys/class/net/vec0 ]; then
	ip address add 10.78.0.2/24 dev vec0
	ip link set vec0 up
fi
echo "guest: ready"
while read -r line; do
	sh -c "$line" </dev/null
	printf '\nguest: done %s\n' $?
done
# Whoever has started this guest is gone.
echo o >/proc/sysrq-trigger
