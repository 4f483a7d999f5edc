#!/bin/sh
# The first process of a guest under QEMU that becomes Debian's systemd. Its first root is this machine's, read-only, from which
# it takes netram and its units; its second one is the disk, which has Debian, and stays.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs run /run
dmesg --console-level 1
word() { sed "s|.*netram.$1=\([^ ]*\).*|\1|" /proc/cmdline; }
modules=$(word modules)
for driver in drivers/block/virtio_blk drivers/block/loop net/core/failover drivers/net/net_failover drivers/net/virtio_net \
	fs/fuse/fuse; do
	[ ! -e "$modules/$driver.ko.xz" ] || insmod "$modules/$driver.ko.xz"
done
root=/run/root
mkdir $root
mount -t ext4 /dev/vda $root || exit 1
if [ ! -e $root/usr/local/bin/netram ]; then
	cp "$(word program)" $root/usr/local/bin/netram
	# The same commands as those of the program of lenders alone.
	printf '#!/bin/sh\nexec /usr/local/bin/netram lender "$@"\n' >$root/usr/local/bin/netram-lender
	chmod 755 $root/usr/local/bin/netram-lender
	cp "$(word packaging)"/netram*.service $root/etc/systemd/system/
	cp "$(word packaging)"/netram.sysusers $root/usr/lib/sysusers.d/netram.conf
	chroot $root systemd-sysusers
	# Not a first boot: that would enable every unit.
	chroot $root systemd-machine-id-setup
	echo guest >$root/etc/hostname
	mkdir -p $root/var/log/journal
	# The console is the test's, and the guest has none of the modules that binary formats need.
	ln -s /dev/null $root/etc/systemd/system/serial-getty@.service
	ln -s /dev/null $root/etc/systemd/system/proc-sys-fs-binfmt_misc.automount
	here=$(dirname "$0")
	cp "$here"/systemd-console.sh "$here"/systemd-database.sh $root/usr/local/bin/
	cat >$root/etc/systemd/system/guest-console.service <<-END
		[Service]
		ExecStart=/bin/sh /usr/local/bin/systemd-console.sh
		StandardInput=tty-force
		StandardOutput=tty
		StandardError=tty
		TTYPath=/dev/ttyS0
		[Install]
		WantedBy=multi-user.target
	END
	# As a database's unit and its drop-in would be.
	cat >$root/etc/systemd/system/guest-database.service <<-END
		[Unit]
		BindsTo=netram-mount@srv-app.service
		After=netram-mount@srv-app.service
		RequiresMountsFor=/srv/app /srv/db
		[Service]
		ExecStart=/bin/sh /usr/local/bin/systemd-database.sh /srv/app /srv/db
		KillMode=mixed
		[Install]
		WantedBy=multi-user.target
	END
	chroot $root systemctl enable guest-console
fi
ip address add 10.0.2.15/24 dev eth0
ip link set eth0 up
cd $root
mount --move /dev dev
mount --move /sys sys
mount --move /proc proc
mount --move . /
exec chroot . /lib/systemd/systemd
