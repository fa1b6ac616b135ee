#!/bin/sh
# run.sh: runs one fuzz target for EVO_FUZZ_SECONDS (60), beginning with its corpus; what it finds is left beside the program.
# usage: run.sh TARGET CORPUS
set -eu

target=$1
corpus=$2
name=$(basename "$target")
seconds=${EVO_FUZZ_SECONDS:-60}
least=100 # runs; fewer have tested nothing
work=$(dirname "$target")/$name.work

here=$(cd "$(dirname "$0")" && pwd)
dict=$here/dictionaries/${name#fuzz_}.dict
if [ -f "$dict" ]; then set -- -dict="$dict"; else set --; fi
case $name in
fuzz_api) set -- "$@" -max_len=600 -len_control=0 ;; # a program of a few bytes does nothing
*) set -- "$@" -max_len=4096 -len_control=20 ;;
esac

export ASAN_OPTIONS="halt_on_error=1:detect_stack_use_after_return=1:allocator_may_return_null=1:${ASAN_OPTIONS:-}"
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export LSAN_OPTIONS="print_suppressions=0:suppressions=$here/../lsan.supp"
export OMP_WAIT_POLICY=passive

mkdir -p "$work/corpus" "$work/found"
log=$work/log
status=0
"$target" "$@" -max_total_time="$seconds" -timeout=120 -rss_limit_mb=2048 \
    -entropic_scale_per_exec_time=1 -use_value_profile=1 -close_fd_mask=2 -print_final_stats=1 \
    -artifact_prefix="$work/found/" "$work/corpus" "$corpus" >"$log" 2>&1 || status=$?
tail -n 60 "$log"
runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
if [ "$status" -ne 0 ]; then
    echo "$name: failed; the input is in $work/found, and in base64:" >&2
    find "$work/found" -type f -exec base64 {} ';' >&2 # the machine may be gone when this is read
    exit 1
fi
if [ "${runs:-0}" -lt $least ]; then
    echo "$name: ${runs:-no} runs, expected at least $least" >&2
    exit 1
fi
