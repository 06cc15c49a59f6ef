#!/usr/bin/env bash
# Makes the Debian packages weft-tools, libweft-dev and weft-doc in build/package, and their bill of
# materials, weft.spdx.json.
#
#   deploy/debian/make_packages.sh [--lint]
#
#   --lint: also runs lintian, and fails if it finds an error; installs it if it is missing
set -euo pipefail
if [[ " $* " =~ " "(-h|--help)" " ]]; then
  sed -nE '2,/^set /s/^# ?//p' "$0"
  exit
fi
cd "$(dirname "$0")/../.."
tools/setup.sh
cmake --preset package
cmake --build build/package
rm -f build/package/*.deb
(cd build/package && cpack)
deploy/debian/write_sbom.py --torch .deps/site/torch --out build/package/weft.spdx.json build/package/*.deb
if [[ ${1:-} == --lint ]]; then
  if ! command -v lintian > /dev/null; then apt-get install -y --no-install-recommends lintian; fi
  lintian --fail-on error build/package/*.deb
fi
