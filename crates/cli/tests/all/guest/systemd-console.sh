#!/bin/sh
# Takes commands from the guest's console, one a line, once systemd has started everything.
stty -echo
echo "guest: $(systemctl is-system-running --wait)"
echo "guest: ready"
while read -r line; do
	sh -c "$line" </dev/null
	printf '\nguest: done %s\n' $?
done
systemctl poweroff --force --force
