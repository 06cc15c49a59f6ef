#!/usr/bin/env bash
# Builds one preset and runs its tests, from a bare clone:
#
#   tools/test.sh [dev|release|asan|tsan|clang] [ctest options ...]
#
# dev, the default, also checks layers and formatting. The last line is ctest's own verdict.
set -euo pipefail
if [[ " $* " =~ " "(-h|--help)" " ]]; then
  sed -nE '2,/^set /s/^# ?//p' "$0"
  exit
fi
cd "$(dirname "$0")/.."

preset=dev
if [[ $# -gt 0 && $1 != -* ]]; then
  preset=$1
  shift
fi
case $preset in
  dev | release | asan | tsan | clang) ;;
  *) echo "test.sh: unknown preset '$preset' (dev, release, asan, tsan, clang)" >&2 && exit 2 ;;
esac

tools/setup.sh
if [[ $preset == dev ]]; then
  tools/check_layers.py
  tools/check_format.sh
fi

cmake --preset "$preset" >/dev/null
cmake --build --preset "$preset" -- -j 2

export ASAN_OPTIONS=detect_stack_use_after_return=1
# Debian's fontconfig, which draws the curves' text, keeps what it has read until the process ends.
export LSAN_OPTIONS=suppressions=$PWD/tools/lsan.supp:print_suppressions=0
export UBSAN_OPTIONS=print_stacktrace=1
# Debian's abseil is not instrumented: the reference count of a shared absl::Status is invisible.
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=$PWD/tools/tsan.supp
# Debian's gRPC is not instrumented: what it hands from thread to thread looks like a race inside its
# own templates. The same tests run over the in-process transport.
if [[ $preset == tsan ]]; then set -- -E Grpc "$@"; fi

log=build/$preset/test.log
code=0
ctest --test-dir "build/$preset" -j 2 --output-on-failure --no-tests=error "$@" 2>&1 | tee "$log" || code=$?

# ctest's label table is "unit = 1.23 sec*proc (45 tests)".
counts=$(sed -nE 's/^([a-z]+) += .*\(([0-9]+) tests?\)$/\1 \2/p' "$log" | paste -sd, | sed 's/,/, /g')
echo "$preset: tests run by label: ${counts:-none}"
grep -E '^[0-9]+% tests passed' "$log" || echo "$preset: ctest ended with $code before it ran the tests"
exit "$code"
