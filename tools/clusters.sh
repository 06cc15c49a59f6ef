#!/usr/bin/env bash
# Runs two examples under every launcher of clusters, and prints a table (docs/launch.md):
#
#   tools/clusters.sh [--only LAUNCHER,...] [--build build/release] [--verbose]
#
# It installs OpenMPI, MPICH and SLURM, and builds build/release. The hosts are network namespaces, so it
# needs root. Without tools/oracles.sh, torchrun is skipped.
set -euo pipefail
if [[ " $* " =~ " "(-h|--help)" " ]]; then
  sed -nE '2,/^set /s/^# ?//p' "$0"
  exit
fi
cd "$(dirname "$0")/.."
if [[ $EUID -ne 0 ]]; then echo "clusters.sh: only root can make the hosts" >&2 && exit 2; fi

tools/setup.sh clusters
if [[ " $* " != *" --build"* ]]; then
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  if ! { cmake --preset release &&
    cmake --build build/release --target ddp_mnist parameter_server weft_launch -- -j "$(nproc)"; } >"$log" 2>&1; then
    cat "$log" >&2
    echo "clusters.sh: the build failed, see above" >&2
    exit 2
  fi
fi
tools/clusters.py "$@"
