#!/bin/sh
# Appends rows to a file in each of the directories, and syncs them, until it is told to end; then writes that it was.
trap 'ends=1' TERM
row=0
while [ -z "$ends" ]; do
	row=$((row + 1))
	for directory; do
		echo $row >>"$directory/rows" && sync "$directory/rows" || exit 1
	done
	sleep 0.2
done
for directory; do
	echo closed >>"$directory/rows" && sync "$directory/rows" || exit 1
done
