#!/usr/bin/env bash
# Fetch uPlot, which draws the charts of the report, from the npm registry into the assets of the report.
# Usage: scripts/vendor_uplot.sh. For another version, change both lines below; the first run prints the checksum.
set -euo pipefail
version=1.6.32
checksum=4b8a8191e425658e3ea8c8c1314b0fc679c861ee3a1af2b20c7b16ba50b5133d # of the tarball, SHA-256
target=$(cd "$(dirname "$0")/.." && pwd)/src/fieldwatch/report/page/assets/vendor
drafts=$(mktemp -d)
trap 'rm -rf "$drafts"' EXIT
cd "$drafts"

npm pack --silent "uplot@$version" >/dev/null
found=$(sha256sum "uplot-$version.tgz" | cut -d ' ' -f 1)
if [ "$found" != "$checksum" ]; then
    echo "vendor_uplot.sh: uplot-$version.tgz has the checksum $found, expected $checksum: nothing was changed" >&2
    exit 1
fi
tar -xzf "uplot-$version.tgz"
cd package
sha256sum LICENSE dist/uPlot.iife.min.js dist/uPlot.min.css | sed 's:dist/::' >"$drafts/SHA256SUMS"
mkdir -p "$target"
cp LICENSE dist/uPlot.iife.min.js dist/uPlot.min.css "$drafts/SHA256SUMS" "$target/"
echo "$target: uPlot $version"
