#!/usr/bin/env bash
# Builds one preset and runs its tests, from a bare clone:
#
#   tools/test.sh [dev|release|asan|tsan] [--all] [ctest options ...]
#
# Without --all, the tests that start whole jobs run once, in a small form. With --all they run in every
# form, and so do the model checker, the install test, more simulated seeds, the fuzz targets' corpora and
# the benchmarks' own tests. Without --all, bench/ and the fuzz targets are not even built. CI runs --all.
# GTEST_FILTER='ReducerCore*' limits the run to some tests, `-R rpc_session` to some executables.
# Executables that start whole jobs (CTest's names with _smoke, and those beside them) pass a filter of
# their own, which counts more than GTEST_FILTER. Run such a program itself with --gtest_filter.
# dev, the default, also checks layers and formatting. The last line is CTest's result.
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
selection=(-LE full)
targets=(--target weft_quick)
if [[ ${1-} == --all ]]; then
  selection=()
  targets=()
  shift
fi
case $preset in
  dev | release | asan | tsan) ;;
  *) echo "test.sh: unknown preset '$preset' (dev, release, asan, tsan)" >&2 && exit 2 ;;
esac

if [[ $preset == asan ]]; then tools/setup.sh sanitizers; else tools/setup.sh; fi
if [[ $preset == dev ]]; then
  tools/check_layers.py
  tools/check_format.sh
fi

cmake --preset "$preset" >/dev/null
cmake --build --preset "$preset" "${targets[@]}" -- -j 2

export ASAN_OPTIONS=detect_stack_use_after_return=1
# Debian's fontconfig, which finds the font of the curves, keeps its data until the process exits.
export LSAN_OPTIONS=suppressions=$PWD/tools/lsan.supp:print_suppressions=0
export UBSAN_OPTIONS=print_stacktrace=1
# Debian's Abseil is not instrumented, so TSan does not see the reference count of a shared
# absl::Status, nor that one thread makes the table of StrError.
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=$PWD/tools/tsan.supp
# Debian's gRPC is not instrumented. So objects that it passes from thread to thread look like races
# inside its own templates. The same tests run over the in-process transport.
if [[ $preset == tsan ]]; then export GTEST_FILTER=${GTEST_FILTER-'-*Grpc*'}; fi

# A test that hangs shows where, before CTest kills it.
ctest --test-dir "build/$preset" --show-only=json-v1 >"build/$preset/tests.json"
tools/show_hung_tests.py "build/$preset/tests.json" &
watcher=$!
trap 'kill "$watcher" 2>/dev/null || true' EXIT

log=build/$preset/test.log
code=0
# One more than the two processors, because an eighth of the time is spent in tests that wait.
ctest --test-dir "build/$preset" -j 3 --output-on-failure --no-tests=error "${selection[@]}" "$@" 2>&1 | tee "$log" || code=$?

# CTest counts its entries; each entry of GoogleTest's says how many tests it ran.
ran=$(sed -nE 's/^\[==========\] ([0-9]+) tests? from .* ran\..*/\1/p' "build/$preset/Testing/Temporary/LastTest.log" |
  awk "{ sum += \$1 } END { print sum }")
echo "$preset: ${ran:-0} tests of GoogleTest ran"
grep -E '^[0-9]+% tests passed' "$log" || echo "$preset: ctest ended with $code before it ran the tests"
exit "$code"
