#!/usr/bin/env bash
# Attacks a running job from another network namespace, and prints a table (docs/security.md):
#
#   tools/attack.sh [--connections 30000] [--verbose]
#
# It builds build/release. It needs root, or a user who may create user namespaces.
set -euo pipefail
if [[ " $* " =~ " "(-h|--help)" " ]]; then
  sed -nE '2,/^set /s/^# ?//p' "$0"
  exit
fi
cd "$(dirname "$0")/.."

tools/setup.sh
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { cmake --preset release &&
  cmake --build build/release --target rnn_model_parallel weft_launch member_attacks -- -j "$(nproc)"; } >"$log" 2>&1; then
  cat "$log" >&2
  echo "attack.sh: the build failed, see above" >&2
  exit 2
fi
exec tools/attack.py "$@"
