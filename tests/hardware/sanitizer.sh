#!/bin/sh
# Runs the small cases of `evo check` under compute-sanitizer, one tool after the other: out-of-bounds and misaligned
# accesses, races in shared memory, reads of memory that nothing was written to, barriers that not all threads reach.
# For a machine with an NVIDIA GPU and the CUDA toolkit; by hand, CI has none.
#
#     tests/hardware/sanitizer.sh build [TOOL]...        (all four by default)
#
# EVO_SANITIZER_FILTER chooses other cases than those below. Prints a line a tool; the status is 0 if all are clean.
set -u
build=${1:?usage: sanitizer.sh BUILD [TOOL]...}
shift
[ $# -gt 0 ] || set -- memcheck racecheck initcheck synccheck
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
filter=${EVO_SANITIZER_FILTER:-*n=17*}
logs=${EVO_SANITIZER_LOGS:-$build/sanitizer}
mkdir -p "$logs"

failed=0
for tool; do
    log=$logs/$tool.log
    "$sanitizer" --tool "$tool" --error-exitcode 9 --print-limit 20 --log-file "$log" \
        "$build/tools/evo" check --device cuda:0 --filter "$filter" > "$log.out" 2>&1
    status=$?
    last=$(tail -n 1 "$log.out")
    errors=$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$log" | tail -n 1)
    if [ $status -eq 0 ]; then
        echo "ok      $tool: $last; ${errors#========= }"
    else
        failed=1
        echo "FAILED  $tool: status $status, $last; ${errors:-no summary, see $log and $log.out}"
    fi
done
exit $failed
