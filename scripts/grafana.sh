#!/usr/bin/env bash
# Makes packaging/grafana/netram.json with Grafana's own types, and decodes it with them, strictly. Needs Python, Go, and
# their package servers the first time. --check changes nothing: it fails if the file is not what the script makes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

SDK='grafana-foundation-sdk==1769699379!11.6.0'
work="${CARGO_TARGET_DIR:-target}/grafana"
fail() { echo "grafana: $*" >&2; exit 1; }

mkdir -p "$work"
work="$(realpath "$work")"
if [[ ! -e $work/sdk ]]; then
	python3 -m venv "$work/python" && "$work/python/bin/pip" install -q "$SDK" || fail "the SDK cannot be installed"
	touch "$work/sdk"
fi
if [[ ! -x $work/decode ]]; then
	command -v go >/dev/null || fail "no \`go\`, which builds the check: see https://go.dev/doc/install"
	(cd packaging/grafana/check && go build -o "$work/decode" .)
fi
"$work/python/bin/python" packaging/grafana/dashboard.py > "$work/netram.json"
"$work/decode" < "$work/netram.json" || fail "the dashboard does not match Grafana's schema"
if [[ ${1:-} == --check ]]; then
	cmp "$work/netram.json" packaging/grafana/netram.json || fail "packaging/grafana/netram.json is stale: make grafana"
else
	cp "$work/netram.json" packaging/grafana/netram.json
fi
