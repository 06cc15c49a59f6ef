#!/usr/bin/env bash
# Installs what Weft is built with and this machine lacks: Debian packages, and LibTorch into
# .deps/site (1.3 GB, ignored by git). If everything is there, it does and prints nothing.
#
#   tools/setup.sh [sanitizers | clusters]
#
#   sanitizers: those of clang with their symbolizer, and libFuzzer, as well
#   clusters: OpenMPI, MPICH and SLURM as well
set -euo pipefail
if [[ " $* " =~ " "(-h|--help)" " ]]; then
  sed -nE '2,/^set /s/^# ?//p' "$0"
  exit
fi
cd "$(dirname "$0")/.."

packages=(
  g++ cmake ninja-build ccache lld clang-14 clang-tidy-14 clang-format git python3 python3-pip pkg-config
  libgrpc++-dev protobuf-compiler-grpc libprotobuf-dev protobuf-compiler libabsl-dev
  zlib1g-dev libssl-dev libxxhash-dev libgd-dev nlohmann-json3-dev libcli11-dev
  libgtest-dev libgmock-dev
  gdb spin iproute2 nftables
  dataset-fashion-mnist bible-kjv bible-kjv-text
)
if [[ ${1:-} == sanitizers ]]; then packages+=(libclang-rt-14-dev llvm-14); fi
if [[ ${1:-} == clusters ]]; then packages+=(openmpi-bin mpich slurmctld slurmd slurm-client munge); fi
# The libtorch_cpu of the wheel needs these two packages, but no CUDA toolkit.
wheels=(torch==2.11.0 "nvidia-cuda-cupti==13.0.*" "nvidia-cuda-runtime==13.0.*")
site=.deps/site
stamp=$site/.installed

fail() {
  echo "setup: $*" >&2
  exit 1
}

# Three tries, because the usual failure here is a dropped download.
retry() {
  local try
  for try in 1 2 3; do
    "$@" && return 0
    echo "setup: try $try of 3 failed: $*" >&2
    sleep $((try * 5))
  done
  return 1
}

as_root() {
  if [[ $EUID -eq 0 ]]; then "$@"; else sudo "$@"; fi
}

install_packages() {
  local missing=() package
  for package in "${packages[@]}"; do
    if [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) != installed ]]; then
      missing+=("$package")
    fi
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0

  command -v apt-get >/dev/null || fail "no apt-get here. Install by other means: ${missing[*]}"
  if [[ $EUID -ne 0 ]] && ! command -v sudo >/dev/null; then
    fail "not root and no sudo. Run as root: apt-get install ${missing[*]}"
  fi
  echo "setup: installing ${missing[*]}"
  retry as_root apt-get update -qq || fail "apt-get update failed"
  retry as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
    fail "apt-get could not install: ${missing[*]}"
}

install_torch() {
  [[ $(cat "$stamp" 2>/dev/null) == "${wheels[*]}" ]] && return 0

  echo "setup: installing LibTorch into $site (${wheels[*]})"
  local python=python3
  "$python" -m pip --version >/dev/null 2>&1 || python=/usr/bin/python3
  rm -rf "$site.partial"
  retry "$python" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
    --retries 10 --timeout 60 --only-binary :all: --no-deps --upgrade \
    --target "$site.partial" "${wheels[@]}" ||
    fail "pip could not fetch ${wheels[*]} (it needs Python 3.10 or newer, here: $("$python" --version))"
  echo "${wheels[*]}" >"$site.partial/.installed"
  rm -rf "$site"
  mv "$site.partial" "$site"
}

# Installs the headers of LibTorch's Gloo, which the wheel lacks. They are taken out of Debian's
# package, which is not installed: Debian's libgloo must never be linked or loaded beside
# libtorch_cpu.
install_gloo_headers() {
  [[ -f .deps/gloo/usr/include/gloo/context.h ]] && return 0

  command -v apt-get >/dev/null || fail "no apt-get here. Unpack by other means: libgloo-dev into .deps/gloo"
  echo "setup: unpacking the headers of libgloo-dev into .deps/gloo"
  rm -rf .deps/gloo.partial
  mkdir -p .deps/gloo.partial
  (
    cd .deps/gloo.partial
    retry apt-get download -qq libgloo-dev 2>/dev/null ||
      { retry as_root apt-get update -qq && retry apt-get download -qq libgloo-dev; }
  ) || fail "apt-get could not fetch libgloo-dev"
  dpkg-deb -x .deps/gloo.partial/libgloo-dev_*.deb .deps/gloo.partial
  rm -rf .deps/gloo .deps/gloo.partial/usr/lib .deps/gloo.partial/*.deb
  mv .deps/gloo.partial .deps/gloo
}

mkdir -p .deps
exec {lock}>.deps/lock
flock "$lock"
install_packages
install_torch
install_gloo_headers
