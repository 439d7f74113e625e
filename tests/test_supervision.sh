#!/bin/sh
# How runs end: kills of every kind of process, two interrupts, and starts that must be refused with one
# sentence and the documented exit status. After each, no process of the run is left.
set -u
bin=${SLUICE_BIN:-build/bin}
sluice=$bin/sluice
work=$(mktemp -d "${TMPDIR:-/tmp}/sluice-ends.XXXXXX") || exit 1
pid= watcher= held=
trap 'for p in $pid $watcher $held; do kill -KILL "$p" 2>/dev/null; done; chmod -R u+w "$work"; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
cd "$work" || exit 1
export XDG_RUNTIME_DIR="$work"

fail() {
    echo "test_supervision: $*"
    for log in "$work"/*.out; do echo "--- $log" && tail -n 15 "$log"; done
    exit 1
}

# A run that would take minutes; ready when a rank has made a step.
start() {
    name=$1
    shift
    env --default-signal=INT "$sluice" train data=sample/data.yaml model=yolo11n imgsz=64 batch=8 nbs=8 \
        epochs=500 patience=0 workers=2 project="$work/runs" name="$name" "$@" >"$name.out" 2>&1 </dev/null &
    pid=$!
    tries=0
    until "$sluice" status $pid >status.txt 2>/dev/null && awk '$1 ~ /^rank-/ && / [1-9][0-9]* images/ { n++ } END { exit n == 0 }' status.txt; do
        tries=$((tries + 1))
        [ $tries -lt 1200 ] && kill -0 $pid 2>/dev/null || fail "$name: no step within 120 s"
        sleep 0.1
    done
    children=$(awk '$2 ~ /^[0-9]+$/ { print $2 }' status.txt)
}

child() { awk -v n="$1" '$1 == n { print $2 }' status.txt; }

# Ended or a zombie that its new parent has not reaped.
gone() {
    state=$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) || return 0
    case $state in Z* | X* | '') return 0 ;; esac
    return 1
}

# ended NAME STATUS WORDS: the run has this exit status, said these words, and left nothing behind.
ended() {
    if [ -n "$pid" ]; then
        wait $pid
        got=$?
        pid=
    fi
    [ $got -eq "$2" ] || fail "$1: exit status $got instead of $2"
    grep -q -- "$3" "$1.out" || fail "$1: does not say '$3'"
    nothing_left "$1"
}

nothing_left() {
    tries=0
    for p in $children; do
        until gone "$p"; do
            tries=$((tries + 1))
            [ $tries -lt 30 ] || fail "$1: process $p is still there after 3 s"
            sleep 0.1
        done
    done
    # A scribe that is killed in the middle of a write leaves its file for the next one to remove.
    case $1 in
    coordinator | scribe | twice) ;;
    *) [ -z "$(find "$work/runs/$1" -name '.*tmp' 2>/dev/null)" ] || fail "$1: temporary files are left" ;;
    esac
}

"$sluice" sample out=sample images=24 imgsz=128 seed=1 >sample.out 2>&1 || fail 'sluice sample'

start loader
for n in 1 2 3; do
    kill -KILL "$(child loader-0)" || fail 'loader: loader-0 is not there'
    old=$(child loader-0) tries=0
    until "$sluice" status $pid >status.txt && [ -n "$(child loader-0)" ] && [ "$(child loader-0)" != "$old" ]; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || fail 'loader: no new loader'
        sleep 0.1
    done
done
"$sluice" status loader --json >status.json || fail 'status: by name'
grep -q '"state":"training"' status.json || fail "status: $(cat status.json)"
kill -INT $pid
ended loader 5 'after a checkpoint'
grep -c '"event":"loader-dead"' runs/loader/events.jsonl | grep -qx 3 || fail 'loader: three deaths are not in the events'
"$sluice" status loader >gone.out 2>&1 && fail 'status: finds a run that is over'

# follow WORDS..: a watcher of the run, which has said where the run is when this returns.
follow() {
    rm -f follow.out
    "$sluice" status $pid --follow "$@" >follow.out 2>follow.err &
    watcher=$!
    tries=0
    until [ -s follow.out ]; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || fail "$name: --follow says nothing"
        sleep 0.1
    done
}

# followed STATUS WORDS: the watcher has ended with the run; its last words.
followed() {
    wait $watcher
    got=$?
    watcher=
    [ $got -eq "$1" ] || fail "$name: --follow has exit status $got instead of $1"
    cat follow.out follow.err | grep -q -- "$2" || fail "$name: --follow does not say '$2'"
}

start rank device=cpu,cpu
follow --json
kill -KILL "$(child rank-1)"
ended rank 1 'rank-1 .*signal 9'
followed 1 '^{"event":"end","exit":1,"why":"rank-1 '
grep -q '^{"time":.*"event":"failure"' follow.out || fail 'rank: --follow does not show the failure'
grep -qv '^{".*}$' follow.out && fail 'rank: --follow --json prints something else'

start scribe
kill -KILL "$(child scribe)"
ended scribe 1 'scribe .*signal 9'

# hold PROCESS: it does not get on, although a stop wakes who is stopped.
hold() {
    kill -STOP "$1"
    while kill -STOP "$1" 2>/dev/null; do sleep 0.01; done &
}

# held_run NAME COMMAND [OPTION]: COMMAND is done to a run whose rank 0 is held, so that it does not checkpoint. Between
# being woken and held again it may get as far as its checkpoint all the same: then the run is begun again.
held_run() {
    for try in 1 2 3 4 5 6 7 8 9 10; do
        rm -rf "runs/$1"
        start "$1" ${3:+"$3"}
        hold "$(child rank-0)"
        $2
        wait $pid
        got=$?
        pid=
        [ $got -eq 5 ] || return 0
    done
}
two_interrupts() {
    kill -INT $pid
    tries=0
    until grep -q 'finishing the step' twice.out; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] && kill -0 $pid 2>/dev/null || return 0
        sleep 0.05
    done
    sleep 0.7 # two in less than half a second count as one
    kill -INT $pid 2>/dev/null
}
held_run twice two_interrupts
ended twice 1 'ended at once'

terminate() { kill -TERM $pid; }
held_run deadline terminate stop_deadline=1
ended deadline 1 'stop_deadline'

# One watcher is held: neither the run nor the other watcher waits for it.
start command
"$sluice" status $pid --follow >held.out 2>&1 &
held=$!
tries=0
until [ -s held.out ]; do
    tries=$((tries + 1))
    [ $tries -lt 600 ] || fail "$name: the watcher that is to be held says nothing"
    sleep 0.1
done
kill -STOP $held
follow
"$sluice" stop command >stop.out || fail 'stop: not heard'
ended command 5 'after a checkpoint'
followed 0 '  ended with exit status 5 after .*resume='
kill -CONT $held
wait $held || fail 'command: a watcher that was held did not hear the end'
held=

# As early as can be: the stop is heeded when the trainers are up, or before anything is made.
env --default-signal=INT "$sluice" train data=sample/data.yaml model=yolo11n imgsz=64 batch=8 nbs=8 epochs=500 \
    workers=1 device=cpu,cpu project="$work/runs" name=early >early.out 2>&1 </dev/null &
pid=$!
tries=0
until "$sluice" status $pid >status.txt 2>/dev/null && grep -q '^rank-1 ' status.txt; do
    tries=$((tries + 1))
    [ $tries -lt 6000 ] && kill -0 $pid 2>/dev/null || fail 'early: no rank within 60 s'
    sleep 0.01
done
children=$(awk '$2 ~ /^[0-9]+$/ { print $2 }' status.txt)
kill -INT $pid
ended early 5 'stopped'

start coordinator device=cpu,cpu
socket=$(sed -n 's,^endpoint=ipc://,,p' "$work/sluice/$pid.run")
[ ! -r /proc/net/unix ] || grep -q "$socket" /proc/net/unix || fail "coordinator: listens at '$socket'?"
follow
kill -KILL $pid
wait $pid 2>/dev/null
followed 1 'without a word'
pid=
nothing_left coordinator
grep -q "$socket" /proc/net/unix 2>/dev/null && fail 'coordinator: a socket is left'

# refused NAME STATUS WORDS ARGUMENTS..: one sentence, the status, and no run directory.
refused() {
    name=$1 want=$2 words=$3
    shift 3
    timeout 60 "$sluice" train imgsz=64 batch=8 epochs=1 device=cpu project="$work/runs" name="$name" "$@" \
        >"$name.out" 2>&1 </dev/null
    got=$?
    [ $got -eq "$want" ] || fail "$name: exit status $got instead of $want"
    grep '^sluice: ' "$name.out" | grep -q -- "$words" || fail "$name: does not say '$words'"
    [ "$(grep -c '^sluice: ' "$name.out")" -eq 1 ] || fail "$name: more than one sentence"
    [ ! -e "runs/$name" ] || fail "$name: a run directory is left"
}

refused key 2 'epochs' data=sample/data.yaml epohcs=3
refused value 2 'epochs' data=sample/data.yaml epochs=none
refused uneven 2 'batch=' data=sample/data.yaml batch=7 device=cpu,cpu
refused nodata 2 'missing.yaml' data=missing.yaml
mkdir -p empty/images/train && printf 'path: .\ntrain: images/train\nval: images/train\nnames: [a]\n' >empty/data.yaml
refused empty 3 'empty' data=empty/data.yaml
refused memory 4 'ring_depth' data=sample/data.yaml imgsz=4096 batch=1024 ring_depth=64
refused model 2 'nosuch' data=sample/data.yaml model=nosuch
refused weights 2 'nothing.safetensors' data=sample/data.yaml model="$work/nothing.safetensors"
refused gpu 4 'device=cpu' data=sample/data.yaml device=99
refused resume 2 'resume=' resume=nothing/there

# A run directory in use.
start locked
refused other 4 'in use by another run' data=sample/data.yaml name=locked exist_ok=True
kill -INT $pid
ended locked 5 'after a checkpoint'

if [ "$(id -u)" -ne 0 ]; then
    mkdir closed && chmod 555 closed
    refused unwritable 4 'project=' data=sample/data.yaml project="$work/closed/runs"
fi
printf 'a file\n' >file
refused blocked 4 'project=' data=sample/data.yaml project="$work/file/runs"
echo 'test_supervision: passed'
