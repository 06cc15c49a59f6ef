#!/usr/bin/env bash
# Runs a group of workers, injects faults (kills, stops, partitions, resets, full disks, limits),
# and checks what Weft promises (docs/testing/chaos.md):
#
#   tools/chaos.sh [--minutes N | --seconds N] [--seed S] [--workers N] [--loopback] [--no-flips]
#                  [--only KIND,KIND] [--apart S] [--busy N]
#
#   --minutes N    how long faults are injected (10)
#   --seconds N    the same in seconds, at least 5
#
#   --seed S       the seed of the fault plan and of the workload (1)
#   --workers N    the number of workers, 3 to 32 (5)
#
#   --loopback     use no network namespaces, even where the user may create them
#   --no-flips     flip no bits
#
#   --only KINDS   inject only these faults: kill, stop, partition, one-way, isolate, store-cut,
#                  loss, reset, proxy-delay, proxy-truncate, hung-stream, full-disk, file-limit,
#                  memory-limit, thread-limit, leave; no fail points, no flipped bits
#
#   --apart S      seconds between the end of a fault and the next fault (else they overlap); 99 %
#                  of deaths must then be noticed within 0.5 s, 99 % of hangs within 2.4 s
#
#   --busy N       threads per processor that compute all the time (0)
#
# It builds in build/chaos, like the release preset but with fail points. As root, or where users
# may create namespaces, each worker has a network of its own. Elsewhere all workers use loopback.
# Then no packet is dropped, no connection is reset and no disk is full. The ledgers and logs of a
# failed run stay in build/chaos/run until the next run.
set -euo pipefail
if [[ " $* " =~ " "(-h|--help)" " ]]; then
  sed -nE '2,/^set /s/^# ?//p' "$0"
  exit
fi
cd "$(dirname "$0")/.."

folder=build/chaos
arguments=("$@")
if ! printf '%s\n' "$@" | grep -qE '^--(minutes|seconds)(=|$)'; then
  arguments+=(--minutes 10)
fi
[[ -x $folder/tests/chaos/chaos_controller ]] || echo "chaos.sh: building, some minutes the first time"

tools/setup.sh
mkdir -p "$folder"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { cmake --preset release -B "$folder" -DWEFT_FAIL_POINTS=ON -DWEFT_BUILD_BENCH=OFF &&
  cmake --build "$folder" --target chaos_controller chaos_worker -- -j "$(nproc)"; } >"$log" 2>&1; then
  cat "$log" >&2
  echo "chaos.sh: the build failed, see above" >&2
  exit 2
fi
rm -f "$log"

rm -rf "$folder/run"
exec "$folder/tests/chaos/chaos_controller" --keep "$folder/run" "${arguments[@]}"
