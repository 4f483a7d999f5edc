#!/usr/bin/env bash
# What people put on a disk, put on an attached volume that is killed under it, for as long as wanted.
#
#   scripts/users.sh [SECONDS]     five minutes unless said otherwise; docs/design/testing.md says what it does
#
# As root on Debian it installs what the workloads need; elsewhere what is missing is skipped aloud.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-300}
[[ $seconds =~ ^[0-9]+$ ]] || {
	echo "users: \`$seconds\` is no number of seconds" >&2
	exit 2
}

PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
# command, package
wanted=(
	"fio fio"
	"mkfs.ext4 e2fsprogs"
	"mkfs.xfs xfsprogs"
	"mkfs.btrfs btrfs-progs"
	"stress-ng stress-ng"
	"pg_ctlcluster postgresql"
	"mariadbd mariadb-server"
)
missing=()
for line in "${wanted[@]}"; do
	read -r command package <<<"$line"
	command -v "$command" >/dev/null || missing+=("$package")
done
if ((${#missing[@]})) && ((EUID == 0)) && command -v apt-get >/dev/null; then
	echo "users: installing ${missing[*]}"
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -q
	apt-get install -q -y --no-install-recommends "${missing[@]}"
fi

test=(cargo test -q -p netram-cli --test all users:: -- --include-ignored)
count=$("${test[@]}" --list | grep -c ': test$')
# Each test takes an equal part, and at least the few rounds that it always does.
NETRAM_USERS_SECONDS=$((seconds / count)) "${test[@]}" --nocapture --test-threads 1
