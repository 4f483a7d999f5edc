#!/usr/bin/env bash
# Packs a program into a container image: `image.sh PROGRAM [BUILT [DIRECTORY]]`. PROGRAM is netram-lender or netram-csi, BUILT the
# directory with built programs (target/release), and DIRECTORY (target/images) gets
#
#   PROGRAM/rootfs                 the root: the program, and the libraries that it loads
#   PROGRAM/config.json            beside it, for `runc run --bundle` (the lender only)
#   PROGRAM-VERSION.oci.tar        the same root as an image, in OCI's layout: for podman load, skopeo, umoci
#
# The root has no shell and no package manager. The same programs give the same bytes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

program="${1:?image: name netram-lender or netram-csi}"
target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
built="$(realpath -m "${2:-$target/release}")"
directory="$(realpath -m "${3:-$target/images}")"
version="$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | sed -n 1p)"
epoch="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}"
bundle="$directory/$program"
root="$bundle/rootfs"

case $program in
netram-lender)
	others=()
	# Where hosts give it a memory file system, a directory on a disk, and the key's directory.
	mounts=(store spill etc/netram)
	config='"Entrypoint": ["/usr/bin/netram-lender"], "Cmd": ["serve"], "Env": ["PATH=/usr/bin", "NETRAM_STORE=/store/netram-lender.mem"]'
	;;
netram-csi)
	# By which it runs the machine's own programs.
	others=(nsenter)
	mounts=(csi)
	config='"Entrypoint": ["/usr/bin/netram-csi"], "Cmd": ["serve"], "Env": ["PATH=/usr/bin"]'
	;;
*)
	echo "image: no image is made of $program; name netram-lender or netram-csi" >&2
	exit 2
	;;
esac
if [[ ! -x $built/$program ]]; then
	echo "image: no $built/$program; \`make image\` builds it" >&2
	exit 1
fi

rm -rf "$bundle"
mkdir -p "$root"/{usr/bin,usr/share/doc/netram,dev,etc,proc,run,sys,tmp}
for mount in "${mounts[@]}"; do mkdir -p "$root/$mount"; done
install -m 755 "$built/$program" "$root/usr/bin/$program"
if command -v strip >/dev/null; then strip --strip-debug "$root/usr/bin/$program"; fi
for other in "${others[@]}"; do install -m 755 "$(command -v "$other")" "$root/usr/bin/$other"; done
# The loader finds each where it is on this machine.
for library in $(ldd "$root"/usr/bin/* | sed -n 's/.*[[:space:]]\(\/[^ ]*\) (0x.*/\1/p' | sort -u); do
	install -D -m 755 "$(realpath "$library")" "$root$library"
	package="$(dpkg-query -S "$library" "/usr$library" 2>/dev/null | sed 's/:.*//' || true)"
	copyright="/usr/share/doc/$package/copyright"
	if [[ -e $copyright ]]; then install -D -m 644 "$copyright" "$root$copyright"; fi
done
install -m 644 LICENSE-APACHE LICENSE-MIT "$root/usr/share/doc/netram"
echo 'root:x:0:0:root:/:/sbin/nologin' >"$root/etc/passwd"
echo 'root:x:0:' >"$root/etc/group"
find "$root" -type d -exec chmod 755 {} +
if [[ -e packaging/image/$program.json ]]; then
	install -m 644 "packaging/image/$program.json" "$bundle/config.json"
fi

layout="$(mktemp -d)"
trap 'rm -rf "$layout"' EXIT
blobs="$layout/blobs/sha256"
mkdir -p "$blobs"
packed() {
	tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$epoch" --format=gnu -C "$1" -c .
}
# Puts a file among the blobs, and says how others refer to it.
blob() {
	local file=$1 type=$2 sum
	sum="$(sha256sum "$file")"
	sum="${sum%% *}"
	printf '"mediaType": "application/vnd.oci.image.%s", "digest": "sha256:%s", "size": %s' "$type" "$sum" "$(stat -c %s "$file")"
	mv "$file" "$blobs/$sum"
}

case "$(uname -m)" in
x86_64) architecture=amd64 ;;
aarch64) architecture=arm64 ;;
*) architecture="$(uname -m)" ;;
esac
created="$(date -u -d "@$epoch" +%Y-%m-%dT%H:%M:%SZ)"
packed "$root" >"$layout/layer"
unpacked="$(sha256sum "$layout/layer")"
gzip -n "$layout/layer"
layer="$(blob "$layout/layer.gz" layer.v1.tar+gzip)"
cat >"$layout/config" <<END
{
  "created": "$created", "architecture": "$architecture", "os": "linux",
  "config": {$config, "StopSignal": "SIGTERM"},
  "rootfs": {"type": "layers", "diff_ids": ["sha256:${unpacked%% *}"]},
  "history": [{"created": "$created", "created_by": "scripts/image.sh $program"}]
}
END
config="$(blob "$layout/config" config.v1+json)"
cat >"$layout/manifest" <<END
{
  "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
  "config": {$config},
  "layers": [{$layer}],
  "annotations": {
    "org.opencontainers.image.title": "$program", "org.opencontainers.image.version": "$version",
    "org.opencontainers.image.licenses": "Apache-2.0 OR MIT", "org.opencontainers.image.source": "https://github.com/netram/netram"
  }
}
END
manifest="$(blob "$layout/manifest" manifest.v1+json)"
cat >"$layout/index.json" <<END
{
  "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
  "manifests": [{
    $manifest,
    "platform": {"architecture": "$architecture", "os": "linux"},
    "annotations": {
      "org.opencontainers.image.ref.name": "$program:$version", "io.containerd.image.name": "docker.io/library/$program:$version"
    }
  }]
}
END
echo '{"imageLayoutVersion": "1.0.0"}' >"$layout/oci-layout"
packed "$layout" >"$directory/$program-$version.oci.tar"
echo "$directory/$program-$version.oci.tar"
