#!/usr/bin/env bash
# Builds everything of a release into target/release-files, with checksums: Debian packages, the manylinux wheel, crates,
# container images, the sources, the bill of materials and the changelog. `make release` runs it. Nothing is sent.
#
# The version is the workspace's. CHANGELOG.md must have a section for it, and the checkout must have no change that is not
# committed; NETRAM_RELEASE_TRIAL=1 permits both, for a trial.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
files="$target/release-files"
version="$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | sed -n 1p)"

fail() {
	echo "release: $*" >&2
	exit 1
}
if [[ -z ${NETRAM_RELEASE_TRIAL-} ]]; then
	[[ -z $(git status --porcelain) ]] || fail "this checkout has changes that are not committed: \`git status\`"
	grep -q "^## \[$version\] - 2" CHANGELOG.md || fail "CHANGELOG.md has no line \`## [$version] - DATE\`"
fi

# Without SOURCE_DATE_EPOCH, whose change would have everything compiled anew: packages and images take the commit's date.
make --no-print-directory deb wheel-manylinux image crates

rm -rf "$files"
mkdir -p "$files"
for file in "$target"/debian/*_"${version}"_*.deb "$target"/wheels-manylinux/netram-"$version"-*.whl \
	"$target"/package/*-"$version".crate "$target"/images/*-"$version".oci.tar "$target"/package/netram.cdx.json; do
	[[ -e $file ]] || fail "$file was not built"
	# Debugging symbols are as large as all else, and can be built again.
	[[ $file == *-dbgsym_* ]] || cp "$file" "$files"
done
cp CHANGELOG.md "$files"
git archive --prefix="netram-$version/" HEAD | gzip -n >"$files/netram-$version.tar.gz"

# The bill of materials keeps to the schema that it names.
"$target/release-tools/bin/python" - "$files/netram.cdx.json" <<'END'
import sys

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

fault = JsonStrictValidator(SchemaVersion.V1_5).validate_str(open(sys.argv[1]).read())
sys.exit(f"release: netram.cdx.json: {str(fault).splitlines()[0]}" if fault else 0)
END

(cd "$files" && sha256sum -- * >SHA256SUMS && sha256sum --check --quiet SHA256SUMS)
echo "$files: $(find "$files" -type f | wc -l) files"
