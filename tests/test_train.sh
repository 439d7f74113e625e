#!/bin/sh
# Whole runs of the command on a made-up data set: one rank, two ranks, a stop by the user and its resume.
# usage: test_train.sh [BUILD], or from tests/run.sh; exit status 0 passed, 1 failed.
set -u
sluice=${SLUICE_BIN:-${1:-build}/bin}/sluice
work=$(mktemp -d "${TMPDIR:-/tmp}/sluice-train.XXXXXX") || exit 1
pid=
cleanup() {
    [ -n "$pid" ] && kill -KILL "$pid" 2>/dev/null
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

fail() {
    echo "test_train: $*" >&2
    for log in "$work"/*.out; do
        echo "--- $log" >&2
        tail -n 15 "$log" >&2
    done
    exit 1
}

# run NAME EXPECTED-STATUS ARGUMENTS..: sluice train with the sizes of this test.
run() {
    name=$1 want=$2
    shift 2
    timeout 300 "$sluice" train "data=$work/data/data.yaml" model=yolo11n imgsz=96 batch=8 nbs=8 workers=2 \
        optimizer=AdamW lr0=0.002 "project=$work/runs" "name=$name" "$@" >"$work/$name.out" 2>&1 </dev/null
    got=$?
    [ "$got" -eq "$want" ] || fail "$name: exit status $got instead of $want"
}

# files NAME ROWS: what design 9 promises of a run directory.
header='epoch,time,train/box_loss,train/cls_loss,train/dfl_loss,metrics/precision(B),metrics/recall(B)'
header="$header,metrics/mAP50(B),metrics/mAP50-95(B),val/box_loss,val/cls_loss,val/dfl_loss,lr/pg0,lr/pg1,lr/pg2"
files() {
    dir=$work/runs/$1
    for file in args.yaml results.csv events.jsonl weights/last.safetensors weights/best.safetensors \
        weights/last.state.safetensors; do
        [ -s "$dir/$file" ] || fail "$1: $file is missing or empty"
    done
    [ -d "$dir/logs" ] || fail "$1: logs/ is missing"
    [ "$(head -n 1 "$dir/results.csv")" = "$header" ] || fail "$1: results.csv has another header"
    # Epochs 1 to ROWS, each once and in order; every value a number.
    tail -n +2 "$dir/results.csv" | awk -F, -v rows="$2" '
        NF != 15 || $1 != NR { bad = 1 }
        { for (i = 1; i <= NF; i++) if ($i !~ /^-?[0-9.]+(e[-+]?[0-9]+)?$/) bad = 1 }
        END { exit bad || NR != rows }' || fail "$1: results.csv does not have rows 1 to $2: $(cat "$dir/results.csv")"
    [ -z "$(find "$dir" -name '*.tmp*')" ] || fail "$1: temporary files are left"
}

"$sluice" sample "out=$work/data" images=24 imgsz=128 seed=1 >"$work/sample.out" 2>&1 || fail "sluice sample"

run one 0 epochs=4 device=cpu
files one 4
loss() { awk -F, -v row="$2" 'NR == row + 1 { print $3 + $4 + $5 }' "$work/runs/$1/results.csv"; }
awk -v a="$(loss one 1)" 'BEGIN { exit !(a > 0.1 && a < 100) }' || fail "one: a loss of $(loss one 1)"

# A watcher of a run, from as soon as there is one.
follow() {
    tries=0
    until "$sluice" status "$1" >"$work/status.out" 2>&1; do
        tries=$((tries + 1))
        [ "$tries" -lt 1200 ] || exit 1
        sleep 0.1
    done
    exec timeout 300 "$sluice" status "$1" --follow
}

# The same seed gives the same numbers, time apart, and whoever watches. A program of the loader's name, in a folder of
# its own, becomes the loader when the watcher has its first table: there is nothing to train on before.
bin=$(cd "$(dirname "$sluice")" && pwd)
mkdir "$work/own"
cp "$sluice" "$work/own/"
ln -s "$bin/sluice-trainer" "$bin/sluice-scribe" "$work/own/"
cat >"$work/own/sluice-loader" <<SCRIPT
#!/bin/sh
case " \$* " in *' --scan '*) ;; *) n=0 && until [ -s "$work/follow.out" ] || [ \$((n += 1)) -gt 1000 ]; do sleep 0.05; done ;; esac
exec "$bin/sluice-loader" "\$@"
SCRIPT
chmod +x "$work/own/sluice-loader"
follow "$work/runs/again" >"$work/follow.out" 2>&1 &
pid=$!
sluice=$work/own/sluice
run again 0 epochs=4 device=cpu workers=1
sluice=$bin/sluice
wait "$pid" || fail "follow: exit status $?"
pid=
grep -q '^loader-0 ' "$work/follow.out" || fail "follow: no table first"
[ "$(grep -c '  epoch [1-4] done  box .* mAP50 ' "$work/follow.out")" -ge 2 ] || fail "follow: sees no epochs"
tail -n 1 "$work/follow.out" | grep -q '  done after 4 epochs$' || fail "follow: does not end with the run"
cut -d, -f1,3- "$work/runs/one/results.csv" >"$work/one.csv"
cut -d, -f1,3- "$work/runs/again/results.csv" | cmp -s - "$work/one.csv" || fail "a second run gives other numbers"

run two 0 epochs=2 device=cpu,cpu
files two 2

# The user's stop: after the first epoch's row, in the middle of the run; one that came to its end before is begun
# again. The default action is put back because a shell starts background processes with SIGINT ignored.
for try in 1 2 3 4 5 6 7 8; do
    rm -rf "$work/runs/stopped"
    env --default-signal=INT "$sluice" train "data=$work/data/data.yaml" model=yolo11n imgsz=96 batch=8 nbs=8 \
        workers=2 optimizer=AdamW lr0=0.002 "project=$work/runs" name=stopped epochs=12 device=cpu \
        >"$work/stopped.out" 2>&1 </dev/null &
    pid=$!
    tries=0
    until [ "$(wc -l 2>/dev/null <"$work/runs/stopped/results.csv" || echo 0)" -ge 2 ]; do
        tries=$((tries + 1))
        [ "$tries" -lt 1200 ] && kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
    kill -INT "$pid" 2>/dev/null
    wait "$pid"
    got=$?
    pid=
    [ "$got" -eq 0 ] || break
done
[ "$got" -eq 5 ] || fail "stopped: exit status $got instead of 5"
rows=$(($(wc -l <"$work/runs/stopped/results.csv") - 1))
[ "$rows" -ge 1 ] || fail "stopped: no first epoch"
[ "$rows" -lt 12 ] || fail "stopped: the run went on to its end"
files stopped "$rows"

timeout 300 "$sluice" train "resume=$work/runs/stopped" >"$work/resumed.out" 2>&1 </dev/null ||
    fail "resume: exit status $?"
files stopped 12
timeout 60 "$sluice" train "resume=$work/runs/stopped" >"$work/finished.out" 2>&1 </dev/null
[ $? -eq 2 ] || fail "a finished run was resumed"

# Weights of one run start another.
run from 0 epochs=1 device=cpu "model=$work/runs/one/weights/best.safetensors"
files from 1
run refused 2 epochs=1 device=cpu model=yolo11n.pt
grep -q "yolo11n.pt is not in $PWD, and nothing is downloaded" "$work/refused.out" ||
    fail "refused: where yolo11n.pt was looked for is not said"

# import writes a file of its own, whole or not at all, over nothing, and runs nothing.
import() {
    want=$1
    shift
    timeout 60 "$sluice" import "$@" >"$work/import.out" 2>&1 </dev/null
    got=$?
    [ "$got" -eq "$want" ] || fail "import $*: exit status $got instead of $want"
}
mkdir "$work/import"
import 0 "$work/runs/one/weights/best.safetensors" "out=$work/import/y.safetensors"
grep -q 'transferred 499 of 499 tensors' "$work/import.out" || fail "import: not all tensors"
import 2 "$work/runs/one/weights/best.safetensors" "out=$work/import/y.safetensors"
import 2 tests/golden/pt/hostile_system.pt "out=$work/import/z.safetensors"
grep -q 'asks to call posix.system' "$work/import.out" || fail "import: what was refused is not named"
import 2 tests/golden/pt/plain.pt "out=$work/import/z.safetensors"
[ "$(ls -A "$work/import")" = y.safetensors ] || fail "import left something behind"
[ ! -e sluice-hostile-ran ] || fail "import ran what was in the file"
run imported 0 epochs=1 device=cpu "model=$work/import/y.safetensors"
grep -q 'transferred 499 of 499 tensors' "$work/imported.out" || fail "imported: not all tensors"
echo "test_train: passed"
