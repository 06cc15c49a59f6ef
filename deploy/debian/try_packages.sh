#!/usr/bin/env bash
# Tries the packages of build/package in a bare Debian 12 root: installs them with apt, builds the
# first program of README.md against them and runs it under weft_launch, removes them, and checks
# that nothing is left. LibTorch is lent to the root from .deps/site. Needs root.
#
#   deploy/debian/try_packages.sh [FOLDER]
#
#   FOLDER: where the root is made and kept (default: a temporary one, which is removed at the end)
set -euo pipefail
if [[ " $* " =~ " "(-h|--help)" " ]]; then
  sed -nE '2,/^set /s/^# ?//p' "$0"
  exit
fi
cd "$(dirname "$0")/../.."
if ! command -v debootstrap > /dev/null; then apt-get install -y --no-install-recommends debootstrap; fi
root=${1:-$(mktemp -d)}
end() {
  for mount in proc dev work/site; do umount -l "$root/$mount" 2> /dev/null || true; done
  if [[ -z ${1:-} ]]; then rm -rf --one-file-system "$root"; fi
}
trap 'end "${1:-}"' EXIT

mirror=$(apt-get indextargets --format '$(REPO_URI)' | head -n 1)
debootstrap --variant=minbase bookworm "$root" "$mirror"
for file in /etc/apt/sources.list /etc/apt/sources.list.d /etc/apt/apt.conf.d /etc/apt/trusted.gpg.d \
            /etc/ssl/certs /usr/local/share/ca-certificates; do
  if [[ -e $file ]]; then
    mkdir -p "$root/$(dirname "$file")"
    cp -rL "$file" "$root/$(dirname "$file")/"
  fi
done
cp /etc/resolv.conf /etc/hosts "$root/etc/"
mkdir -p "$root/work/site"
mount --bind .deps/site "$root/work/site"  # other libraries of the wheels lie beside LibTorch
mount --bind /dev "$root/dev"
mount -t proc proc "$root/proc"
cp build/package/*.deb "$root/work/"
awk '/^```cpp$/ {on = 1; next} on && /^```$/ {exit} on' README.md > "$root/work/program.cc"
cat > "$root/work/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(program LANGUAGES C CXX)
find_package(weft REQUIRED)
add_executable(program program.cc)
target_link_libraries(program PRIVATE weft::weft)
CMAKE
cat > "$root/work/try.sh" <<'TRY'
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
apt-get update -q
apt-get install -q -y --no-install-recommends cmake g++ ninja-build
dpkg-query -W -f '${Package}\n' | sort > /work/before
cd /work
apt-get install -q -y --no-install-recommends ./weft-tools_*.deb
weft_launch --help > /dev/null && weft_cert --help > /dev/null && weft_pipeline --help > /dev/null
apt-get install -q -y --no-install-recommends ./libweft-dev_*.deb ./weft-doc_*.deb
cmake -G Ninja -B build -DCMAKE_BUILD_TYPE=Release -DWEFT_TORCH_DIR=/work/site/torch
cmake --build build
weft_launch -n 2 -- build/program
apt-get purge -q -y weft-tools libweft-dev weft-doc
apt-get autoremove -q -y --purge
dpkg-query -W -f '${Package}\n' | sort > /work/after
diff /work/before /work/after
if find / -xdev -iname '*weft*' -not -path '/work/*' -not -path '/proc/*' | grep .; then
  echo "left behind" >&2
  exit 1
fi
echo "packages: installed, used, and removed without a trace"
TRY
chroot "$root" bash /work/try.sh
