#!/bin/sh
# The whole pipeline under AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer: two ranks, two loaders,
# training, validation, checkpoints, a stop in the middle, its resume, the digest. Every process writes what a
# sanitizer has to say into one folder, which must be empty at the end.
# usage: test_sanitized.sh [BUILD], or from tests/run.sh; skipped where the programs were built without sanitizers.
set -u
bin=${SLUICE_BIN:-${1:-build}/bin}
sluice=$bin/sluice
# The symbol that a sanitized program has, of whichever compiler.
grep -q __asan_init "$sluice" 2>/dev/null || {
    echo 'the programs are not sanitized: make SAN=address,undefined'
    exit 77
}
work=$(mktemp -d "${TMPDIR:-/tmp}/sluice-sanitized.XXXXXX") || exit 1
pid=
cleanup() {
    [ -n "$pid" ] && kill -KILL "$pid" 2>/dev/null
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM
mkdir "$work/said"
export XDG_RUNTIME_DIR="$work"
export ASAN_OPTIONS="abort_on_error=1:detect_leaks=1:log_path=$work/said/asan"
export UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1:log_path=$work/said/ubsan"

fail() {
    echo "test_sanitized: $*"
    said
    for log in "$work"/*.out; do echo "--- $log" && tail -n 15 "$log"; done
    exit 1
}

# What sanitizers have said; also what one may have written before it knew where to.
said() {
    for report in "$work"/said/*; do
        [ -e "$report" ] && echo "--- $report" && head -n 60 "$report"
    done
    find "$work" -name '*.log' -o -name '*.out' | while read -r log; do
        grep -E -A 20 'ERROR: (Address|Leak)Sanitizer|runtime error:' "$log" && echo "--- in $log"
    done
}

# run NAME EXPECTED-STATUS ARGUMENTS..
run() {
    name=$1 want=$2
    shift 2
    timeout 240 "$sluice" "$@" >"$work/$name.out" 2>&1 </dev/null
    got=$?
    [ "$got" -eq "$want" ] || fail "$name: exit status $got instead of $want"
}

run sample 0 sample "out=$work/data" images=16 imgsz=128 seed=2
# A file of each kind that a scan must drop or remark on.
printf 'no image' >"$work/data/images/train/broken.jpg"
head -c 700 "$(find "$work/data/images/train" -name '*.jpg' -size +1k | sort | head -n 1)" >"$work/data/images/train/cut.jpg"

sizes="data=$work/data/data.yaml model=yolo11n imgsz=64 batch=4 nbs=4 optimizer=AdamW lr0=0.002 workers=2"
sizes="$sizes device=cpu,cpu project=$work/runs"
run whole 0 train $sizes name=whole epochs=2 mixup=0.5 degrees=10 perspective=0.0005
[ -s "$work/runs/whole/weights/best.safetensors" ] || fail 'whole: no weights'

# A stop once the second epoch is under way, then on to the end, with another number of ranks.
timeout 240 "$sluice" train $sizes name=stopped epochs=500 io=threads >"$work/stopped.out" 2>&1 </dev/null &
pid=$!
waited=0
until [ "$(wc -l 2>/dev/null <"$work/runs/stopped/results.csv" || echo 0)" -ge 2 ]; do
    waited=$((waited + 1))
    [ "$waited" -lt 1000 ] && kill -0 "$pid" 2>/dev/null || fail 'stopped: it does not reach its second epoch'
    sleep 0.2
done
run status 0 status "$work/runs/stopped"
run scale 0 scale "$work/runs/stopped" workers=3
run stop 0 stop "$work/runs/stopped"
wait "$pid"
got=$?
pid=
[ "$got" -eq 5 ] || fail "stopped: exit status $got instead of 5"
# To an end that comes soon: two epochs more than it has.
lines=$(($(wc -l <"$work/runs/stopped/results.csv") + 2))
sed "s/^epochs: .*/epochs: $((lines - 1))/" "$work/runs/stopped/args.yaml" >"$work/args.new"
mv "$work/args.new" "$work/runs/stopped/args.yaml"
run resumed 0 train "resume=$work/runs/stopped" device=cpu batch=2 workers=1
[ "$(wc -l <"$work/runs/stopped/results.csv")" -eq $lines ] || fail "resumed: not the rows of $((lines - 1)) epochs"
run digest 0 digest "data=$work/data/data.yaml" imgsz=64 batch=4 epochs=2 device=cpu,cpu workers=2 mixup=0.5
# A data set that cannot be used ends with its sentence and nothing else.
printf 'train: nowhere\nval: nowhere\nnames: [a]\n' >"$work/data/bad.yaml"
run refused 3 train "data=$work/data/bad.yaml" "project=$work/runs" name=refused device=cpu

[ -z "$(said)" ] || fail 'a sanitizer had something to say'
