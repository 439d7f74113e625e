#!/bin/sh
# Resumes that somebody has made odd: a model from a table of the user's own, started elsewhere; the state of
# another run in the folder; a stop before training has gone on; a log too large to look through.
set -u
bin=${SLUICE_BIN:-build/bin}
sluice=$bin/sluice
here=${SLUICE_TESTS:-$(dirname "$0")}
here=$(cd "$here" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/sluice-odd.XXXXXX") || exit 1
case $bin in /*) ;; *) bin=$PWD/$bin sluice=$PWD/$sluice ;; esac
pid=
trap '[ -n "$pid" ] && kill -KILL "$pid" 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
cd "$work" || exit 1
export XDG_RUNTIME_DIR="$work"

fail() {
    echo "test_resume_odd: $*"
    for log in "$work"/*.out; do echo "--- $log" && tail -n 15 "$log"; done
    exit 1
}

# until_true SECONDS COMMAND..: the command succeeds within that time.
until_true() {
    tries=$(($1 * 50))
    shift
    until "$@" >/dev/null 2>&1; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || return 1
        sleep 0.02
    done
}

# stopped NAME WORDS..: a run that was stopped after a checkpoint in its second epoch.
stopped() {
    name=$1
    shift
    "$sluice" train data=data/data.yaml imgsz=64 batch=4 nbs=4 workers=1 device=cpu epochs=40 val=False \
        project="$work/runs" name="$name" "$@" >"$name.out" 2>&1 </dev/null &
    pid=$!
    until_true 120 test -s "runs/$name/results.csv" || fail "$name: no first epoch"
    "$sluice" stop $pid >stop.out 2>&1
    wait $pid
    got=$?
    pid=
    [ $got -eq 5 ] || fail "$name: exit status $got instead of 5"
}

# resumed NAME STATUS TEXT WORDS..: it ends with that status and says so.
resumed() {
    name=$1 status=$2 text=$3
    shift 3
    timeout 300 "$sluice" train resume="$work/runs/$name" "$@" >"$name.out" 2>&1 </dev/null
    got=$?
    [ $got -eq "$status" ] || fail "$name: exit status $got instead of $status"
    grep -q -- "$text" "$name.out" || fail "$name: does not say '$text'"
}

"$sluice" sample out=data images=20 imgsz=128 seed=1 >sample.out 2>&1 || fail 'sluice sample'
cp "$here/../trainer/models/yolo11.yaml" own11.yaml
stopped own model=own11n.yaml
stopped plain model=yolo11n
stopped other model=yolov8n
state=weights/last.state.safetensors

# The state of another model: refused by name, and nothing is lost.
cp -r runs/plain runs/mixed
cp runs/other/$state runs/mixed/$state
resumed mixed 2 'is of model yolov8n, this run has model yolo11n'
cp runs/plain/$state runs/mixed/$state

# A stop while the data set is read: what there was to go on from is still there.
mkdir slow
cp "$sluice" slow/
ln -s "$bin/sluice-scribe" "$bin/sluice-trainer" slow/
cat >slow/sluice-loader <<SCRIPT
#!/bin/sh
exec sleep 300
SCRIPT
chmod +x slow/sluice-loader
slow/sluice train resume="$work/runs/mixed" >held.out 2>&1 </dev/null &
pid=$!
reading() { "$sluice" ps | grep -q 'reading the data set'; }
until_true 60 reading || fail 'held: it does not read the data set'
"$sluice" stop $pid >stop.out 2>&1
wait $pid
got=$?
pid=
[ $got -eq 5 ] || fail "held: exit status $got instead of 5"
grep -q "stopped by sluice stop before training went on; resume=$work/runs/mixed" held.out || fail 'held: other words'
cmp -s runs/plain/$state runs/mixed/$state || fail 'held: another state'

# It goes on, in spite of a log that nobody can look through.
truncate -s 300M runs/mixed/events.jsonl
# shorten NAME: two epochs more than it has done; $lines is what results.csv has then.
shorten() {
    lines=$(($(wc -l <"runs/$1/results.csv") + 2))
    sed "s/^epochs: .*/epochs: $((lines - 1))/" "runs/$1/args.yaml" >args.new && mv args.new "runs/$1/args.yaml"
}
shorten mixed
resumed mixed 0 'events.jsonl has 315 MB and is left as it is'
[ "$(wc -l <runs/mixed/results.csv)" -eq $lines ] || fail "mixed: rows: $(cat runs/mixed/results.csv)"

# The table that lay in the folder where the run was started.
shorten own
mkdir elsewhere
(cd elsewhere && timeout 300 "$sluice" train resume="$work/runs/own" >../own.out 2>&1 </dev/null) ||
    fail "own: exit status $?"
[ "$(wc -l <runs/own/results.csv)" -eq $lines ] || fail "own: rows: $(cat runs/own/results.csv)"
echo 'test_resume_odd: passed'
