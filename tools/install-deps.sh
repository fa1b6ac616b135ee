#!/bin/sh
# install-deps.sh: installs the Debian or Ubuntu packages that libevoformer needs, and does only that.
set -eu

usage() {
    cat <<'USAGE'
usage: sh tools/install-deps.sh [--all] [--list]

Installs the Debian or Ubuntu packages that are missing, as root or through
sudo. When nothing is missing it prints nothing and asks for nothing.

  --all    also what `sh tools/test.sh --all` needs (clang-19 with its
           sanitizers and OpenMP runtime, clang-format-19, lld-19; python3-venv
           for a CUDA compiler from PyPI; CMake, gfortran and OpenMPI; abidiff,
           Doxygen and git; gcovr; ccache; a cross compiler and an emulator for AArch64)
  --list   print the packages' names and install nothing
  --help   this text
USAGE
}

# What building, running and the ordinary tests need.
packages='gcc g++ libc6-dev binutils meson ninja-build pkg-config python3
          libcmocka-dev libcjson-dev libpng-dev python3-numpy python3-pytest'

# What the long tests need: one compiler version for sanitizers and AMD's code objects, one for the formatting; venv for the
# Python package, and for nvcc, which tools/test.sh takes from PyPI where the machine has none; the languages and build
# systems of the suite `embed`; the binary interface; the documentation site; the coverage; a compiler cache; AArch64.
extra='clang-19 libclang-rt-19-dev libomp-19-dev llvm-19 clang-format-19 lld-19 python3-venv
       cmake make gfortran libopenmpi-dev openmpi-bin
       abigail-tools git
       doxygen
       gcovr
       ccache
       gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user'

all=no
list=no
for arg; do
    case $arg in
    --all) all=yes ;;
    --list) list=yes ;;
    -h | --help) usage; exit 0 ;;
    *) echo "install-deps.sh: unknown argument '$arg' (see --help)" >&2; exit 2 ;;
    esac
done

if [ $all = yes ]; then packages="$packages $extra"; fi
if [ $list = yes ]; then
    for p in $packages; do echo "$p"; done
    exit 0
fi

if ! command -v dpkg-query >/dev/null 2>&1 || ! command -v apt-get >/dev/null 2>&1; then
    echo "install-deps.sh: this system has no dpkg and apt-get; install by hand what stands for:" >&2
    for p in $packages; do echo "  $p" >&2; done
    exit 1
fi

# installed NAME: a package of this name, or one that provides it, is fully installed.
# Newer releases provide pkg-config by pkgconf.
providers=$(dpkg-query -W -f '${db:Status-Status} ${Package} ${Provides}\n' 2>/dev/null |
    sed -n 's/^installed //p' | sed 's/([^)]*)//g; s/:[a-z0-9]*//g; s/,/ /g' | tr -s ' ' '\n')
installed() {
    printf '%s\n' "$providers" | grep -Fqx -- "$1"
}

missing=
for p in $packages; do
    installed "$p" || missing="$missing $p"
done
if [ -z "$missing" ]; then exit 0; fi

echo "install-deps.sh: installing$missing"
root=
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        echo "install-deps.sh: not root, and there is no sudo; as root run:" >&2
        echo "  apt-get update && apt-get install --no-install-recommends$missing" >&2
        exit 1
    fi
    root=sudo
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! $root apt-get update >"$log" 2>&1; then
    cat "$log" >&2
    echo "install-deps.sh: apt-get update failed; trying with the lists at hand" >&2
fi

# Say at once what this release does not have, rather than let apt-get stop at the first.
unknown=
for p in $missing; do
    apt-get install --simulate --no-install-recommends "$p" >/dev/null 2>&1 || unknown="$unknown $p"
done
if [ -n "$unknown" ]; then
    echo "install-deps.sh: apt-get finds no installable package:$unknown" >&2
    for p in $unknown; do
        case $p in
        *-19 | *-19-dev)
            echo "  LLVM 19 is in Debian 12 and later and in Ubuntu 24.04 and later." >&2
            echo "  Only --all needs it; building and the ordinary tests do not." >&2
            break ;;
        esac
    done
    exit 1
fi

# shellcheck disable=SC2086
if ! $root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y --no-install-recommends $missing >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    echo "install-deps.sh: apt-get could not install$missing" >&2
    exit 1
fi
