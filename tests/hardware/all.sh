#!/bin/sh
# Everything that only a machine with a GPU can show, in one go, for whoever has one; CI has none.
#
#     tests/hardware/all.sh BUILD [DEVICE]        (DEVICE: cuda:0)
#
# The test programs on the device with the planner's kernels, those of the ops with each tier forced; `evo check` with each of its
# kernels forced, and over the golden files; executions repeated, bit for bit; the coevolution example beside the CPU's; the Python
# scripts of this folder; under compute-sanitizer what sanitizer.sh has. Programs run EVO_JOBS (4) at a time, each for EVO_SECONDS
# (300) at most. A line for each, with its last words; logs in EVO_LOGS (BUILD/hardware). The status is 0 if nothing failed and
# something passed.
set -u
build=${1:?usage: all.sh BUILD [DEVICE]}
build=$(cd "$build" && pwd) || exit 2
device=${2:-cuda:0}
here=$(cd "$(dirname "$0")" && pwd)
logs=${EVO_LOGS:-$build/hardware}
limit=${EVO_SECONDS:-300}
evo=$build/tools/evo
mkdir -p "$logs"
rm -f "$logs"/*.verdict
export EVO_TEST_DEVICE="$device" EVO_TEST_EVO="$evo" EVO_TEST_DATA="$here/.." OMP_WAIT_POLICY=passive

# try NAME COMMAND…: waits for a place among the jobs, then runs the command in the background.
running=0
try() {
    name=$1
    shift
    if [ "$running" -ge "${EVO_JOBS:-4}" ]; then wait; running=0; fi
    running=$((running + 1))
    (
        began=$(date +%s)
        timeout "$limit" "$@" >"$logs/$name.log" 2>&1
        case $? in
        0) verdict='ok     ' ;;
        77) verdict='skipped' ;;
        124) verdict='TIMEOUT' ;;
        *) verdict='FAILED ' ;;
        esac
        last=$(tail -n 1 "$logs/$name.log" | cut -c 1-150)
        echo "$verdict $name, $(($(date +%s) - began)) s: $last" | tee "$logs/$name.verdict"
    ) &
}

# In a shell of its own: BUILD LOGS DEVICE.
# shellcheck disable=SC2016
same_pairs='
for where in "$3" cpu; do
    mkdir -p "$2/$where" && cd "$2/$where" && "$1/examples/coevolution" --device "$where" &&
        cut -f 1,2 contacts.tsv >pairs || exit 1
done
cmp "$2/$3/pairs" "$2/cpu/pairs" && echo "the same $(($(wc -l <"$2/cpu/pairs") - 1)) pairs"'

"$evo" info --report >"$logs/report.txt"
if ! grep -q "^device $device:" "$logs/report.txt"; then
    echo "all.sh: no device $device: evo info has none" >&2
    exit 1
fi
try selftest "$evo" selftest --device "$device"
try golden "$evo" check --golden "$here/../golden" --device "$device"
try check "$evo" check --device "$device"
kernels=$(grep -A 3 "^device $device:" "$logs/report.txt" | sed -n 's/^    [a-z]*: //p' | tr ' ' '\n' | sort -u)
for kernel in $kernels; do
    try "check-$(echo "$kernel" | tr / -)" "$evo" check --device "$device" --kernel "$kernel"
done
for tier in $(echo "$kernels" | cut -d / -f 1 | sort -u); do
    for program in opm trimul properties golden; do
        try "$program-$tier" env EVO_KERNEL="opm:$tier,trimul:$tier" "$build/tests/test_$program"
    done
done
for dtype in fp32 bf16 fp16; do
    # N, and channels that the CPU's fp64 reference does in seconds there.
    for size in 33,128 129,128 777,32; do
        n=${size%,*}
        wide=${size#*,}
        try "repeat-$dtype-$n" "$evo" check --device "$device" \
            --case "trimul(variant=alphafold2,direction=incoming,dtype=$dtype,n=$n,c_z=32,c=32,mask=random,runs=60)" \
            --case "trimul(variant=alphafold2,direction=outgoing,dtype=$dtype,n=$n,c_z=$wide,c=$wide,mask=random,runs=60)" \
            --case "opm(variant=alphafold2,dtype=$dtype,s=16,n=$n,c_m=64,c=$((wide / 4)),c_z=$wide,mask=random,runs=60)"
    done
done
for program in "$build"/tests/test_*; do
    case $program in
    *.p | *test_environment | *test_platform | *test_tensor | *test_vectors | *test_devices) ;; # no device, or two
    *) try "$(basename "$program")" "$program" ;;
    esac
done
try devices "$build/tests/test_devices"
if [ -x "$build/examples/coevolution" ]; then try coevolution sh -c "$same_pairs" sh "$build" "$logs" "$device"; fi
library=$build/src/libevoformer.so
try in-place python3 "$here/in_place.py" "$library"
wait
running=0
if python3 -c 'import torch' 2>/dev/null; then try large python3 "$here/large.py" "$library"; fi
wait
running=0
case $device in
cuda:*) limit=$((4 * limit)) && try sanitizer sh "$here/sanitizer.sh" "$build" ;;
esac
wait
cat "$logs"/*.verdict >"$logs/summary.txt"
passed=$(grep -c '^ok' "$logs/summary.txt")
failed=$(grep -c -E '^(FAILED|TIMEOUT)' "$logs/summary.txt")
skipped=$(grep -c '^skipped' "$logs/summary.txt")
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
