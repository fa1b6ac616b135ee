#!/bin/sh
# test.sh: builds libevoformer and runs its tests; one build by default, all kinds with --all.
# shellcheck disable=SC2086,SC2317
set -u

usage() {
    cat <<'USAGE'
usage: sh tools/test.sh [--all]

Installs the packages that are missing (tools/install-deps.sh), builds in
build-test/ with gcc and assertions, and runs all test suites: a few minutes.

  --all    instead: the formatting; gcc release; the documentation site; the binary
           interface against the last version; a static and a debug build; the CPU
           kernels of all x86 sets, emulated, and of AArch64 under qemu; the Python
           package, installed, with PyTorch 2.11 from PyPI (gigabytes); the
           simulated GPUs; both GPU backends compiled for every architecture;
           each fuzz target for a minute (EVO_FUZZ_SECONDS);
           the lines that tests run; all suites under AddressSanitizer with
           UndefinedBehaviorSanitizer, and under ThreadSanitizer (clang-19): up to
           an hour on two cores
  --help   this text

The device to test is taken from EVO_TEST_DEVICE (default cpu). The last line is
`N passed, N failed, N skipped`: the tests of all Meson runs, and one for each step
that is no Meson run. A skipped test counts as failed unless this script lists it.
USAGE
}

# Tests that may skip, by name: those of other languages and build systems, whose packages only --all installs;
# python-torch, unless PyTorch is there already: the step 'Python package' of --all installs it; hopper, which needs such a chip;
# environment, which needs root; runtimes, which needs a second compiler's OpenMP (--all installs clang).
may_skip='embed-cmake-versions embed-c-cmake embed-c-cmake-static embed-c++-cmake embed-fortran-cmake
          embed-fortran-pkg-config embed-warnings-fortran embed-mpi-openmpi embed-warnings-mpi python-torch
          hopper environment runtimes'
# The same of the installed package's own tests.
python_may_skip='test_gpu test_jax'

all=no
for arg; do
    case $arg in
    --all) all=yes ;;
    -h | --help) usage; exit 0 ;;
    *) echo "test.sh: unknown argument '$arg' (see --help)" >&2; exit 2 ;;
    esac
done

cd "$(dirname "$0")/.." || exit 1
passed=0
failed=0
skipped=0
steps_failed=''
tests_failed=''

finish() {
    if [ -n "$tests_failed" ]; then echo "failed tests:$tests_failed"; fi
    if [ -n "$steps_failed" ]; then echo "failed steps:$steps_failed"; fi
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
    exit
}

# step NAME COMMAND…: runs the command, says how it went and how long it took.
step() {
    name=$1
    shift
    echo "== $name"
    began=$(date +%s)
    verdict=ok
    counted=no # a Meson run has counted its tests itself
    if ! "$@"; then
        verdict=FAILED
        steps_failed="$steps_failed '$name'"
    fi
    if [ $counted = no ]; then
        if [ $verdict = ok ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    fi
    echo "== $name: $verdict, $(($(date +%s) - began)) s"
}

# build DIR CC CXX OPTION…: configures, again if need be, and compiles with warnings as errors: all, or what $targets names.
targets=
build() {
    dir=$1
    cc=$2
    cxx=$3
    shift 3
    again=
    if [ -f "$dir/build.ninja" ]; then again=--reconfigure; fi
    log=$(mktemp)
    if ! CC=$cc CXX=$cxx meson setup $again "$dir" -Dwerror=true "$@" >"$log" 2>&1; then
        cat "$log"
        rm -f "$log"
        return 1
    fi
    rm -f "$log"
    ninja -C "$dir" $targets
}

# run_tests DIR OPTION…: runs the Meson tests and counts them.
run_tests() {
    dir=$1
    shift
    rm -f "$dir/meson-logs/testlog.json"
    status=0
    meson test -C "$dir" --no-rebuild --print-errorlogs "$@" || status=1
    counts=$(python3 - "$dir/meson-logs/testlog.json" "$may_skip" <<'PYTHON'
import json, sys
count = {"passed": 0, "failed": 0, "skipped": 0}
names = []  # of the failed ones
with open(sys.argv[1], encoding="utf-8") as f:
    for test in map(json.loads, f):
        name = test["name"].split(" / ")[-1]
        kind = {"OK": "passed", "EXPECTEDFAIL": "passed", "SKIP": "skipped"}.get(test["result"], "failed")
        if kind == "skipped" and name not in sys.argv[2].split():
            print(f"{name}: skipped, and not on the list of tests that may", file=sys.stderr)
            kind = "failed"
        count[kind] += 1
        if kind == "failed":
            names.append(name)
print(count["passed"], count["failed"], count["skipped"], *names)
PYTHON
    ) || return 1
    counted=yes
    set -- $counts
    passed=$((passed + $1))
    failed=$((failed + $2))
    skipped=$((skipped + $3))
    echo "$1 passed, $2 failed, $3 skipped in $dir"
    if [ "$status" -ne 0 ] && [ "$2" -eq 0 ]; then
        failed=$((failed + 1)) # meson test itself failed
    fi
    if [ "$2" -gt 0 ] || [ "$1" -eq 0 ]; then status=1; fi
    shift 3
    for test; do tests_failed="$tests_failed $dir/$test"; done
    [ "$status" -eq 0 ]
}

build_and_test() {
    build "$@" && run_tests "$1"
}

# All suites; the tests are slower, and the time limits follow.
address_sanitizer() {
    build build-test-asan clang-19 clang++-19 -Dbuildtype=debugoptimized -Db_sanitize=address,undefined \
        -Db_lundef=false && run_tests build-test-asan --timeout-multiplier 10
}

check_format() {
    find include src backends tests tools examples \( -name '*.[ch]' -o -name '*.[ch]pp' \) -exec \
        clang-format-19 --dry-run -Werror --ferror-limit=5 {} +
}

# Most steps compile the same files with the same gcc options: from a cache, where there is one, all but the first time. Only the
# names of gcc lead to it: the builds by clang share nothing.
use_ccache() {
    ccache=$(command -v ccache) || return 0
    rm -rf build-test-ccache
    mkdir build-test-ccache || return 1
    for name in cc gcc c++ g++; do ln -s "$ccache" "build-test-ccache/$name" || return 1; done
    PATH=$PWD/build-test-ccache:$PATH
    CCACHE_DIR=$("$ccache" --get-config cache_dir) # for tests with a HOME of their own
    export CCACHE_DIR
}

# Environments for the Python package's tests, with PyTorch: gigabytes, which arrive while the first steps compile.
# Modules are compiled when they are first imported, and so only those that are.
python_environments() {
    to=$PWD/build-test-python
    rm -rf "$to"
    mkdir -p "$to" || return 1
    exec >"$to/log" 2>&1
    python3 -m venv "$to/torch" && python3 -m venv "$to/before" &&
        "$to/torch/bin/pip" install --quiet --no-compile numpy pytest 'torch==2.11.*' &&
        "$to/before/bin/pip" install --quiet --no-compile numpy pytest
}

# The Python package as its users have it: built with pip, in an environment of its own. Then in one that is moved.
python_package() {
    to=$PWD/build-test-python
    if ! wait "$environments"; then
        cat "$to/log"
        return 1
    fi
    CC=gcc "$to/torch/bin/pip" wheel --quiet --no-deps --wheel-dir "$to/wheel" . || return 1
    if ! python3 -m zipfile -l "$to"/wheel/*.whl | grep -F /LICENSE; then echo "the wheel has no LICENSE"; return 1; fi
    for environment in torch before; do
        "$to/$environment/bin/pip" install --quiet "$to"/wheel/*.whl || return 1
    done
    mv "$to/before" "$to/after"
    (
        cd tests/python || exit 1 # nothing here is the package
        export EVO_TEST_MAY_SKIP="$python_may_skip"
        pytest='-m pytest -q -p no:cacheprovider'
        # Two at a time, since each keeps little more than one core busy, their waiting threads asleep; then what measures times.
        export OMP_WAIT_POLICY=passive
        "$to/torch/bin/python" $pytest test_torch.py >"$to/test_torch" 2>&1 &
        "$to/torch/bin/python" $pytest --ignore=test_torch.py --ignore=test_process.py . &&
            "$to/after/bin/python" $pytest test_functions.py &&
            "$to/after/bin/python" -m evoformer info | grep -F "$to/after" &&
            "$to/torch/bin/python" differential.py --seconds 45 --seed 1
        status=$?
        wait $! || status=1
        cat "$to/test_torch"
        unset OMP_WAIT_POLICY
        [ $status -eq 0 ] && "$to/torch/bin/python" $pytest test_process.py
    )
}

# The GPU backends without a toolkit or GPU: all suites on the simulated devices, which add their own sanitizers. The host code
# counts its lines, for step 'coverage'.
simulated() {
    dir=build-test-simulated
    targets=test-simulated
    build $dir gcc g++ -Dbuildtype=release -Dbackends=cpu,cuda,hip -Dsimulated=true -Dexamples=false $count_lines
    status=$?
    targets=
    find $dir -name '*.gcda' -exec rm {} +
    [ $status -eq 0 ] && run_tests $dir --suite simulated
}

# The lines that the tests of the library and of the readers run, at a few cases each: on the CPU here, on simulated GPUs before.
coverage() {
    dir=build-test-coverage
    names='far golden guards numbers opm overflow plans properties refusals runtime trimul'
    targets='tools/evo examples/coevolution tests/libfake_blas.so tests/test_platform tests/test_tensor tests/test_vectors'
    for program in $names; do targets="$targets tests/test_$program"; done
    build $dir gcc g++ -Dbuildtype=debugoptimized -Ddefault_library=static $count_lines
    status=$?
    targets=
    find $dir -name '*.gcda' -exec rm {} +
    [ $status -eq 0 ] && EVO_TEST_SCALE=16 meson test -C $dir --no-rebuild --print-errorlogs --quiet --timeout-multiplier 4 \
        $names platform tensor vectors cli-evo cli-hostile cli-coevolution &&
        python3 tests/coverage.py $dir build-test-simulated
}
count_lines='-Db_coverage=true -Dc_args=-fprofile-update=atomic'

# nvcc 13.0 from PyPI, in a folder of its own, where the machine has none; its version is that of the oldest driver that takes
# the PTX. These four packages are a working nvcc: the driver program with ptxas, the front end, and two sets of headers.
find_nvcc() {
    if command -v nvcc >/dev/null 2>&1 || [ -x /usr/local/cuda/bin/nvcc ]; then return 0; fi
    if [ ! -f build-test-nvcc/complete ]; then
        python3 -m venv --clear build-test-nvcc &&
            build-test-nvcc/bin/pip install --quiet --disable-pip-version-check 'nvidia-cuda-nvcc==13.0.*' \
                'nvidia-nvvm==13.0.*' 'nvidia-cuda-crt==13.0.*' 'nvidia-cuda-runtime==13.0.*' &&
            touch build-test-nvcc/complete || return 1
    fi
    # It finds its parts beside the name that it is called by, so that a link would not do.
    PATH=$(dirname "$(find "$PWD/build-test-nvcc" -path '*/nvidia/cu13/bin/nvcc')"):$PATH
}

# Both GPU backends by their compilers, for every architecture; no GPU and no driver is needed.
gpu_images() {
    find_nvcc || return 1
    targets=test-images
    build build-test-gpu gcc g++ -Dbuildtype=release -Dbackends=cpu,cuda,hip -Dexamples=false &&
        run_tests build-test-gpu --suite images
    status=$?
    targets=
    return $status
}

# The CPU kernels as compiled for x86 sets that this machine may lack, in plain C of the same shapes.
emulated_sets() {
    build build-test-emulated gcc g++ -Dbuildtype=release -Demulated=true -Dexamples=false &&
        run_tests build-test-emulated --suite isa
}

# AArch64: NEON, and SVE and BF16 of an emulated processor.
aarch64() {
    build build-test-aarch64 gcc g++ --cross-file tools/cross/aarch64.ini -Dbuildtype=release -Dtools=false \
        -Dexamples=false && run_tests build-test-aarch64 --timeout-multiplier 4
}

# Each fuzz target for EVO_FUZZ_SECONDS (60), two at a time. The CPU's instruction sets are emulated, so that all of them run.
fuzzing() {
    build build-test-fuzz clang-19 clang++-19 -Dbuildtype=debugoptimized -Db_sanitize=address,undefined -Db_lundef=false \
        -Dfuzz=true -Demulated=true -Dexamples=false && run_tests build-test-fuzz --suite fuzz --num-processes 2
}

# The static library alone: hidden names, and programs of others that link it.
static_build() {
    build build-test-static gcc g++ -Dbuildtype=release -Ddefault_library=static &&
        run_tests build-test-static --suite api --suite unit --suite embed
}

# Programs of others are built without it.
thread_sanitizer() {
    build build-test-tsan clang-19 clang++-19 -Dbuildtype=debugoptimized -Db_sanitize=thread -Db_lundef=false &&
        run_tests build-test-tsan --timeout-multiplier 10 --no-suite embed
}

deps=
if [ $all = yes ]; then
    deps=--all
    may_skip='python-torch hopper environment'
fi
if ! sh tools/install-deps.sh $deps; then
    failed=1
    steps_failed=' packages'
    finish
fi

if [ $all = no ]; then
    step 'gcc with assertions' build_and_test build-test gcc g++ -Dbuildtype=debugoptimized
    finish
fi

use_ccache || exit 1
python_environments &
environments=$! # step 'Python package' waits for it, and fails if it did

step 'formatting' check_format
step 'gcc release' build_and_test build-test-release gcc g++ -Dbuildtype=release
step 'documentation site' python3 tools/site.py build-test-release/site
step 'binary interface' sh tests/abi.sh build-test-abi
step 'static' static_build
step 'clang debug, compile only' build build-test-debug clang-19 clang++-19 -Dbuildtype=debug
step 'emulated instruction sets' emulated_sets
step 'AArch64' aarch64
step 'Python package' python_package
step 'simulated GPUs' simulated
step 'GPU images' gpu_images
step 'fuzzing' fuzzing
step 'coverage' coverage
step 'ASan and UBSan' address_sanitizer
step 'TSan' thread_sanitizer
finish
