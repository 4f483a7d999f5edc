#!/bin/sh
# The first process of a guest under QEMU: as init.sh, with other drivers, a disk and a network.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs run /run
mkdir /run/mount /run/disk
# Only what is said on purpose is for the console.
dmesg --console-level 1
stty -echo
modules=$(sed 's/.*netram.modules=\([^ ]*\).*/\1/' /proc/cmdline)
for driver in drivers/block/virtio_blk net/core/failover drivers/net/net_failover drivers/net/virtio_net \
	drivers/block/ublk_drv; do
	insmod "$modules/$driver.ko.xz"
done
# The disk has a file system from its second boot on.
mount -t ext4 /dev/vda /run/disk || { mkfs.ext4 -q -F /dev/vda && mount -t ext4 /dev/vda /run/disk; }
ip link set lo up
ip address add 10.0.2.15/24 dev eth0
ip link set eth0 up
echo "guest: ready"
while read -r line; do
	sh -c "$line" </dev/null
	printf '\nguest: done %s\n' $?
done
# Whoever has started this guest is gone.
echo o >/proc/sysrq-trigger
