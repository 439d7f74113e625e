#!/bin/sh
# Loaders that come and go while a run trains: the stream of batches stays what `sluice digest` says it is. More
# and fewer by command, fifty times in a few seconds, killed while they leave, during start-up and a stop; and
# what the machine has no room for is refused in one sentence.
set -u
sluice=${SLUICE_BIN:-build/bin}/sluice
work=$(mktemp -d "${TMPDIR:-/tmp}/sluice-scale.XXXXXX") || exit 1
pid=
trap '[ -n "$pid" ] && kill -KILL "$pid" 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
cd "$work" || exit 1
export XDG_RUNTIME_DIR="$work"

fail() {
    echo "test_scale: $*"
    for log in "$work"/*.out; do echo "--- $log" && tail -n 15 "$log"; done
    exit 1
}

options='data=sample/data.yaml imgsz=64 batch=8 close_mosaic=0 seed=3'
"$sluice" sample out=sample images=160 imgsz=128 seed=2 >sample.out 2>&1 || fail 'sluice sample'
timeout 100 "$sluice" digest $options epochs=12 device=cpu workers=2 >digest.out 2>digest.err || fail 'sluice digest'

# start NAME WORDS..: a run in the background, listed when this returns.
start() {
    name=$1
    shift
    env --default-signal=INT "$sluice" train $options model=yolo11n nbs=8 epochs=500 patience=0 digest=True \
        project="$work/runs" name="$name" "$@" >"$name.out" 2>&1 </dev/null &
    pid=$!
    until_true 60 listed
}

# until_true SECONDS COMMAND..: the command succeeds within that time.
until_true() {
    left=$(($1 * 20))
    shift
    until "$@"; do
        left=$((left - 1))
        [ $left -gt 0 ] && kill -0 $pid 2>/dev/null || fail "$name: not in time: $*"
        sleep 0.05
    done
}

listed() { "$sluice" status $pid >status.txt 2>/dev/null; }
training() { listed && grep -q ': training for' status.txt; }
loaders() { listed && [ "$(grep -c '^loader-' status.txt)" -eq "$1" ]; }
epochs_done() { [ "$(grep -c '"event":"epoch"' "runs/$name/events.jsonl" 2>/dev/null)" -ge "$1" ]; }
images() { listed && awk '$1 == "rank-0" { for (i = 1; i < NF; i++) if ($(i + 1) == "images,") print $i }' status.txt; }
trains() { [ "$(images || echo 0)" -gt "$1" ] 2>/dev/null; }
loader_pids() { listed && awk '/^loader-/ { print $2 }' status.txt; }
scale() { "$sluice" scale $pid workers="$1" >scale.out 2>&1 || fail "scale to $1: $(cat scale.out)"; }

# refused STATUS WORDS N: no change, the exit status, one sentence with the words.
refused() {
    "$sluice" scale $pid workers="$3" >refused.out 2>&1
    got=$?
    [ $got -eq "$1" ] || fail "scale to $3: exit status $got instead of $1: $(cat refused.out)"
    [ "$(wc -l <refused.out)" -eq 1 ] && grep -q -- "$2" refused.out || fail "scale to $3: $(cat refused.out)"
}

# same_stream: the digests of all epochs that the run has finished are those of `sluice digest`.
same_stream() {
    sed -n 's/.*"event":"epoch","epoch":\([0-9]*\),.*"stream":"\([0-9a-f]*\)".*/\1 \2/p' \
        "runs/$name/events.jsonl" | awk '{ print $1 - 1, $2 }' >got.txt
    awk '$1 == "epoch" { print $2, $3 }' digest.out | head -n "$(wc -l <got.txt)" >want.txt
    [ "$(wc -l <got.txt)" -ge "$1" ] || fail "$name: $(wc -l <got.txt) epochs with a digest, not $1"
    cmp -s got.txt want.txt || fail "$name: another stream: $(cat got.txt) instead of $(cat want.txt)"
}

# stop_run: Ctrl-C, and no loader is left.
stop_run() {
    left_pids=$(loader_pids)
    kill -INT $pid
    wait $pid
    got=$?
    pid=
    [ $got -eq 5 ] || fail "$name: exit status $got instead of 5"
    for p in $left_pids; do ! kill -0 "$p" 2>/dev/null || fail "$name: loader $p is left"; done
}

# As early as can be, then up and down to one and to three times the cores, in training and validation.
most=$(($(nproc) * 3))
start updown workers=2 device=cpu
tries=0
until "$sluice" scale $pid workers=5 >early.out 2>&1; do # while it reads the data set the number stays
    tries=$((tries + 1))
    grep -q 'stays' early.out && [ $tries -lt 3000 ] || fail "early: $(cat early.out)"
    sleep 0.02
done
until_true 90 training
for n in $most 1 4 1 "$most" 2; do
    scale "$n"
    until_true 60 loaders "$n"
    "$sluice" status $pid --json | grep -q "\"loaders\":$n," || fail "status does not say that it has $n loaders"
done
refused 2 '1 to 1024' 0
refused 2 '1 to 1024' 1025
scale 2 # as it is
grep -q 'loaders: 2, before 2' scale.out || fail "scale to the same: $(cat scale.out)"
loaders 2 || fail 'a refused scale has changed the number'
until_true 120 epochs_done 3
stop_run
same_stream 3
[ "$(grep -c '"event":"loader-scale"' runs/updown/events.jsonl)" -eq 7 ] || fail 'updown: not each change is in the events'

# Two ranks; a storm of changes, and loaders that are killed while they are told to leave.
start storm workers=1 device=cpu,cpu
until_true 90 training
i=0
while [ $i -lt 50 ]; do
    i=$((i + 1))
    scale $((i * 7 % 6 + 1))
done
# Four of those that are to leave, one every hundredth of a second while the command is on its way and obeyed: no
# more, for as many deaths without an image in between would end the run. Who has left by then is not killed, so it is
# done until enough were.
kills=0 rounds=0
while [ $rounds -lt 4 ] || [ $kills -lt 6 ]; do
    rounds=$((rounds + 1)) n=$((2 - rounds % 2))
    [ $rounds -le 40 ] || fail "storm: only $kills loaders were still there to be killed"
    scale 6
    until_true 60 loaders 6
    until_true 60 trains $(($(images) + 40)) # more than all rings hold: images are made
    leaving=$(loader_pids | tail -n 4)
    "$sluice" scale $pid workers=$n >scale.out 2>&1 &
    asked=$!
    for p in $leaving; do
        kill -KILL "$p" 2>/dev/null && kills=$((kills + 1))
        sleep 0.01
    done
    wait $asked || fail "storm: scale to $n: $(cat scale.out)"
done
scale 3
until_true 60 loaders 3
n=$(grep -c '"event":"epoch"' runs/storm/events.jsonl)
until_true 120 epochs_done $((n > 0 ? n + 2 : 3))
stop_run
same_stream 3

# While it stops the number stays; so it does where the limit on open files is too low. Rank 0 is held, although a stop
# wakes who is stopped: should it slip through to its checkpoint, the run is begun again.
stopping() { listed && grep -q ': stopping for' status.txt; }
for try in 1 2 3 4 5 6 7 8 9 10; do
    rm -rf runs/stopping
    start stopping workers=1 device=cpu
    until_true 90 training
    until_true 60 trains 0
    rank=$(awk '$1 == "rank-0" { print $2 }' status.txt)
    : >hold
    while [ -e hold ] && kill -STOP "$rank" 2>/dev/null; do sleep 0.01; done &
    kill -INT $pid
    tries=0
    until stopping || ! kill -0 $pid 2>/dev/null || [ $tries -ge 1000 ]; do
        tries=$((tries + 1))
        sleep 0.02
    done
    "$sluice" scale $pid workers=9 >refused.out 2>&1
    asked=$?
    rm hold
    wait $!
    kill -CONT "$rank" 2>/dev/null
    wait $pid
    got=$?
    pid=
    [ $got -eq 5 ] || fail "stopping: exit status $got instead of 5"
    grep -q 'no live run' refused.out || break
done
[ $asked -eq 1 ] && [ "$(wc -l <refused.out)" -eq 1 ] && grep -q 'stays' refused.out ||
    fail "scale to 9 in a stop: exit status $asked: $(cat refused.out)"

cat >limited.sh <<SCRIPT
ulimit -n 200
exec "$sluice" train $options model=yolo11n nbs=8 epochs=500 patience=0 project="$work/runs" name=limited \
    workers=1 device=cpu digest=True
SCRIPT
name=limited
env --default-signal=INT sh limited.sh >limited.out 2>&1 </dev/null &
pid=$!
until_true 60 listed
until_true 90 training
refused 4 'ulimit -n' 900
loaders 1 || fail 'limited: the number has changed'
scale 4
until_true 60 loaders 4
stop_run
"$sluice" scale updown workers=2 >over.out 2>&1 && fail 'scale finds a run that is over'
echo "test_scale: passed ($kills loaders killed while leaving)"
