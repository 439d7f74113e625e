#!/bin/sh
# A run that is stopped or killed anywhere and resumed is the run that was not: the same weights and state to
# the bit, the same rows, the same batches; with other ranks or another batch, the same batches. Where the
# build has kill points (SLUICE_BUILD-kill, or KILL_BIN), at every transition of a checkpoint too.
set -u
bin=${SLUICE_BIN:-build/bin}
sluice=$bin/sluice
here=${SLUICE_TESTS:-$(dirname "$0")}
here=$(cd "$here" && pwd)
kill_bin=${KILL_BIN:-${SLUICE_BUILD:-build}-kill/bin}
work=$(mktemp -d "${TMPDIR:-/tmp}/sluice-resume.XXXXXX") || exit 1
pid=
trap '[ -n "$pid" ] && kill -KILL "$pid" 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
cd "$work" || exit 1
export XDG_RUNTIME_DIR="$work"
seed=${SLUICE_TEST_SEED:-$$}
echo "test_resume: seed $seed"

fail() {
    echo "test_resume: $*"
    for log in "$work"/"${1%%:*}"*.out; do [ -f "$log" ] && echo "--- $log" && tail -n 25 "$log"; done
    exit 1
}

# In $drawn a number below $1, from the seed.
random() {
    seed=$(((seed * 1103515245 + 12345) % 2147483648))
    drawn=$((seed / 65536 % $1))
}

# begin NAME ARGUMENTS..: a run in the background; SIGINT and SIGTERM as from a terminal.
begin() {
    name=$1
    shift
    env --default-signal=INT "$sluice" train data=data/data.yaml model=yolo11n imgsz=64 batch=2 nbs=6 workers=2 \
        optimizer=AdamW lr0=0.002 warmup_epochs=1.5 epochs=3 patience=50 device=cpu digest=True \
        project="$work/runs" name="$name" exist_ok=True "$@" >"$name.out" 2>&1 </dev/null &
    pid=$!
}

finish() {
    wait "$pid"
    got=$?
    pid=
    [ "$got" -eq "$2" ] || fail "$1: exit status $got instead of $2"
}

# resume NAME ARGUMENTS..: to its end. Whoever was killed a moment ago may still hold the folder's lock.
resume() {
    name=$1 tries=0
    shift
    until timeout 120 "$sluice" train resume="$work/runs/$name" "$@" >"$name.resumed.out" 2>&1 </dev/null; do
        grep -q 'is in use' "$name.resumed.out" && [ $tries -lt 300 ] || fail "$name: resume: exit status $?"
        tries=$((tries + 1))
        sleep 0.1
    done
}

# What is behind a safetensors file's header: the numbers.
numbers() {
    n=$(od -An -tu8 -N8 "$1" | tr -d ' ')
    tail -c "+$((n + 9))" "$1"
}

# Metadata of a state.
meta() {
    n=$(od -An -tu8 -N8 "runs/$1/weights/last.state.safetensors" | tr -d ' ')
    head -c "$((n + 8))" "runs/$1/weights/last.state.safetensors" | tail -c "+9" |
        sed -n "s/.*\"$2\":\"\([^\"]*\)\".*/\1/p"
}

streams() { sed -n 's/.*"event":"epoch","epoch":\([0-9]*\),.*"stream":"\([0-9a-f]*\)".*/\1 \2/p' "runs/$1/events.jsonl"; }

# same NAME: the run has ended as `full` has.
same() {
    for file in last last.state best; do
        numbers "runs/$1/weights/$file.safetensors" >a.numbers
        numbers "runs/full/weights/$file.safetensors" | cmp -s - a.numbers || fail "$1: other numbers in $file.safetensors"
    done
    for key in epoch position opt_steps updates batches pending best_fitness best_epoch early_stop_best \
        early_stop_epoch finished; do
        [ "$(meta "$1" $key)" = "$(meta full $key)" ] || fail "$1: $key is $(meta "$1" $key), not $(meta full $key)"
    done
    cut -d, -f1,3- "runs/$1/results.csv" >a.csv
    cut -d, -f1,3- runs/full/results.csv | cmp -s - a.csv || fail "$1: other rows: $(cat "runs/$1/results.csv")"
    [ "$(streams "$1")" = "$(streams full)" ] || fail "$1: other batches, or an epoch told twice: $(streams "$1")"
}

"$sluice" sample out=data images=50 imgsz=128 seed=1 >sample.out 2>&1 || fail 'sluice sample'
begin full
finish full 0
[ "$(streams full | wc -l)" -eq 3 ] || fail "full: no digest of each epoch: $(streams full)"
"$sluice" digest data=data/data.yaml model=yolo11n imgsz=64 batch=6 device=cpu,cpu workers=1 epochs=3 >digest.out 2>&1 ||
    fail 'sluice digest'
[ "$(sed -n 's/^epoch \([0-9]*\) \(.*\)/\1 \2/p' digest.out | awk '{ print $1 + 1, $2 }')" = "$(streams full)" ] ||
    fail 'the run did not train on what sluice digest shows'

# ---- stops: in training, between an accumulation's batches, in a validation ----

# Waits until rank 0's line of status says $1, or the run has ended.
until_status() {
    tries=0
    until "$sluice" status "$pid" >status.txt 2>/dev/null && grep -q "^rank-0 .*$1" status.txt; do
        tries=$((tries + 1))
        [ $tries -lt 2000 ] && kill -0 "$pid" 2>/dev/null || return 1
        sleep 0.01
    done
}

# Rank 0 stands still in a validation, which takes a moment: with kill points it stops itself as it gives the
# first or second batch of it back (an epoch has 20 of training, then 3 of validation); without, it gets there in small steps.
begin_validating() {
    rm -f "$1.mark"
    if [ -x "$kill_bin/sluice" ]; then
        random 4
        sluice=$kill_bin/sluice
        SLUICE_KILL_POINT=ring.release.before:$((drawn / 2 * 23 + 21 + drawn % 2)):19 SLUICE_KILL_MARK=$work/$1.mark begin "$1"
        sluice=$bin/sluice tries=0
        until [ -s "$1.mark" ]; do
            tries=$((tries + 1))
            [ $tries -lt 6000 ] && kill -0 "$pid" 2>/dev/null || return 1
            sleep 0.01
        done
        return
    fi
    begin "$1"
    until_status 'epoch . step' || return 1
    rank=$(awk '$1 == "rank-0" { print $2 }' status.txt)
    until kill -STOP "$rank" && "$sluice" status "$pid" >status.txt 2>/dev/null && grep -q '^rank-0 .*validating' status.txt; do
        tries=$((tries + 1))
        [ $tries -lt 2000 ] && kill -CONT "$rank" 2>/dev/null || return 1
        sleep 0.01
    done
}

# stop_where NAME STATUS SAID PENDING: stops a run when status says STATUS, again until its last words are SAID.
# A stop wakes who stands still. A moment that was missed is missed: the run is begun again.
stop_where() {
    for try in $twelve; do
        rm -rf "runs/$1"
        if [ "$2" = validating ]; then
            begin_validating "$1"
        else
            begin "$1"
            random 10
            until_status "$2" && sleep "0.0$drawn"
        fi
        kill -TERM "$pid" 2>/dev/null || true
        wait "$pid"
        got=$?
        pid=
        [ $got -eq 5 ] && grep -q "stopped by the user in epoch .*$3" "$1.out" || continue
        # shellcheck disable=SC2254
        case $(meta "$1" pending) in $4) return 0 ;; esac
    done
    fail "$1: no stop with '$3' in 12 tries"
}

twelve='1 2 3 4 5 6 7 8 9 10 11 12'
stop_where train 'epoch 2 step' ', step ' '*'
resume train
grep -q 'order of images kept' train.resumed.out || fail 'train: the table is not shown'
grep -q 'same weights    kept' train.resumed.out || fail 'train: the same weights are not promised'
same train
stop_where accumulating 'epoch 2 step' ', step ' '[1-9]*'
[ "$(meta accumulating position)" -gt 0 ] || fail 'accumulating: not in the middle of an epoch'
resume accumulating
same accumulating
stop_where validating 'validating' 'with the epoch.s validation' '*'
[ "$(meta validating position)" -eq 40 ] || fail "validating: position $(meta validating position)"
resume validating
grep -q 'its validation comes first' validating.resumed.out || fail 'validating: the table does not say so'
same validating

# ---- everything killed at random, several times in one run ----

begin killed save_minutes=0.002
for round in 1 2 3; do
    tries=0
    until [ -s runs/killed/weights/last.state.safetensors ]; do
        tries=$((tries + 1))
        [ $tries -lt 1200 ] && kill -0 "$pid" 2>/dev/null || fail 'killed: no checkpoint'
        sleep 0.05
    done
    random 9
    sleep "0.$drawn"
    kill -KILL "$pid" 2>/dev/null
    wait "$pid"
    pid=
    [ "$(meta killed finished)" = 1 ] && break
    # A moment, for the kernel to end those whose parent has died.
    sleep 0.3
    [ $round -lt 3 ] || break
    env --default-signal=INT "$sluice" train resume="$work/runs/killed" >killed.out 2>&1 </dev/null &
    pid=$!
done
[ "$(meta killed finished)" = 1 ] || resume killed
same killed

# ---- other ranks, another batch: the batches are the same, by position ----

stop_where ranks 'epoch 2 step' ', step ' '*'
resume ranks device=cpu,cpu
grep -q 'ranks           changed  2, before 1' ranks.resumed.out || fail 'ranks: the table does not say so'
grep -q 'same weights    lost' ranks.resumed.out || fail 'ranks: bits are promised'
[ "$(streams ranks)" = "$(streams full)" ] || fail "ranks: other batches: $(streams ranks)"
stop_where batch 'epoch 2 step' ', step ' '[1-9]*'
resume batch batch=5 workers=1
grep -q 'batch           changed  5 images, before 2' batch.resumed.out || fail 'batch: the table does not say so'
grep -q 'gradients       lost' batch.resumed.out || fail 'batch: gradients of another batch are kept'
[ "$(streams batch)" = "$(streams full)" ] || fail "batch: other batches: $(streams batch)"
grep -q '"event":"resume","epoch":[0-9]*,"position":[1-9]' runs/batch/events.jsonl || fail 'batch: no event'
[ "$(wc -l <runs/batch/results.csv)" -eq 4 ] || fail "batch: results.csv has $(wc -l <runs/batch/results.csv) lines"

# Two ranks that save by the clock and on request, stop in the middle of an epoch and go on. A run that came to its
# end before all that was done to it is begun again.
for try in $twelve; do
    rm -rf runs/pair
    begin pair device=cpu,cpu save_minutes=0.004
    until_status 'epoch 2 step'
    "$sluice" checkpoint "$pid" >checkpoint.out 2>&1
    asked=$?
    kill -TERM "$pid" 2>/dev/null
    wait "$pid"
    got=$?
    pid=
    [ $got -eq 0 ] || break
done
[ $got -eq 5 ] || fail "pair: exit status $got instead of 5, in try $try"
[ $asked -eq 0 ] || fail "sluice checkpoint, two ranks: $(cat checkpoint.out)"
resume pair
[ "$(streams pair)" = "$(streams full)" ] || fail "pair: other batches: $(streams pair)"

# A checkpoint that cannot be written: whoever asked hears why, and training goes on.
begin blocked epochs=500
until_status 'step [0-9]*, [1-9]' || fail 'blocked: no first step'
tries=0
until rm -f runs/blocked/weights/last.state.safetensors && mkdir -p runs/blocked/weights/last.state.safetensors; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || fail 'blocked: the state cannot be put out of the way'
done 2>/dev/null
"$sluice" checkpoint "$pid" >checkpoint.out 2>&1
got=$?
[ $got -eq 1 ] && grep -q 'no checkpoint was written .*last.state.safetensors' checkpoint.out ||
    fail "blocked: exit status $got, says $(cat checkpoint.out)"
rmdir runs/blocked/weights/last.state.safetensors
"$sluice" checkpoint "$pid" >checkpoint.out 2>&1 || fail "blocked: $(cat checkpoint.out)"
kill -TERM "$pid"
finish blocked 5

# Validation turned off between the training and the validation of an epoch: it ends without.
stop_where unvalidated 'validating' 'with the epoch.s validation' '*'
resume unvalidated val=False
[ "$(streams unvalidated)" = "$(streams full)" ] || fail "unvalidated: other batches: $(streams unvalidated)"
[ "$(wc -l <runs/unvalidated/results.csv)" -eq 4 ] || fail 'unvalidated: an epoch has no row'

# No image comes any more: the stop leaves from where the last one was used.
for try in $twelve; do
    rm -rf runs/stalled
    begin stalled stop_deadline=4
    until_status 'epoch 2 step' && awk '/^loader-/ { print $2 }' status.txt | xargs kill -STOP
    until_status 'waiting for data'
    kill -TERM "$pid" 2>/dev/null
    wait "$pid"
    got=$?
    pid=
    [ $got -eq 0 ] || [ $got -eq 5 ] || fail "stalled: exit status $got instead of 5"
    grep -q 'waiting for the images of' stalled.out && break
done
[ $got -eq 5 ] || fail "stalled: never stopped while it waited, in $try tries"
grep -q 'waiting for the images of' stalled.out || fail 'stalled: does not say what it waited for'
resume stalled
same stalled

# ---- the ledger: a file that goes in the middle of the run and is back at the resume ----

gone=$(find data/images/train -name '*.jpg' | sort | sed -n 7p)
for try in $twelve; do
    rm -rf runs/ledger runs/back
    begin ledger epochs=6
    until_status 'epoch 2 step'
    mv "$gone" gone.jpg
    if until_status 'epoch 4 step' && "$sluice" checkpoint "$pid" >checkpoint.out 2>&1; then
        grep -q 'a checkpoint is written: ' checkpoint.out || fail "sluice checkpoint says $(cat checkpoint.out)"
        # The run as it is at one moment: nobody writes while it is copied.
        others=$(awk '$2 ~ /^[0-9]+$/ { print $2 }' status.txt)
        # shellcheck disable=SC2086
        kill -STOP "$pid" $others 2>/dev/null
        cp -r runs/ledger runs/back
        # shellcheck disable=SC2086
        kill -CONT $others "$pid" 2>/dev/null
        [ "$(meta back finished)" = 1 ] || break
    fi
    # It came to its end before that.
    finish ledger 0
    mv gone.jpg "$gone"
done
[ -n "$pid" ] || fail "ledger: no checkpoint in the fourth epoch in $try tries: $(cat checkpoint.out)"
[ "$(meta back ledger_entries)" -ge 1 ] || fail 'ledger: no substitution in the state'
finish ledger 0
mv gone.jpg "$gone"
resume back
grep -q 'substitutes     kept' back.resumed.out || fail 'back: the table does not name the substitutes'
grep -c 'bad-sample' runs/ledger/events.jsonl >/dev/null || fail 'ledger: no event'
[ "$(grep -c bad-sample runs/back/events.jsonl)" -le "$(grep -c bad-sample runs/ledger/events.jsonl)" ] ||
    fail 'back: the file was met anew'
[ "$(streams back)" = "$(streams ledger)" ] || fail "back: other batches than the run that went on: $(streams back)"
numbers runs/back/weights/last.safetensors >a.numbers
numbers runs/ledger/weights/last.safetensors | cmp -s - a.numbers || fail 'back: other weights'

# ---- refusals: one sentence each ----

refused() {
    timeout 60 "$sluice" train resume="$work/runs/$1" >"$1.out" 2>&1 </dev/null
    got=$?
    [ $got -eq 2 ] || fail "$1: exit status $got instead of 2"
    grep -q -- "$2" "$1.out" || fail "$1: does not say '$2'"
}
state=weights/last.state.safetensors
refused full 'is finished'
stop_where damaged 'epoch 2 step' ', step ' '*'
cp runs/damaged/$state whole.state
head -c 100000 whole.state >runs/damaged/$state
refused damaged 'damaged\|cut short\|beyond the end\|data'
sed 's/sluice state 3/sluice state 9/' whole.state >runs/damaged/$state
refused damaged "another version of sluice ('sluice state 9'"
cp whole.state runs/damaged/$state
printf 'X' | dd of=runs/damaged/$state bs=1 seek=$(($(stat -c %s whole.state) - 5000)) conv=notrunc 2>dd.out
refused damaged 'does not match its checksum'
cp whole.state runs/damaged/$state
# Of a run that keeps no list (test_resume_list has the others).
mv "$gone" gone.jpg
mv runs/damaged/samples.catalog .
refused damaged 'images or labels have changed'
mv gone.jpg "$gone"
mv samples.catalog runs/damaged/
resume damaged
same damaged

# ---- every transition of a checkpoint ----

if [ ! -x "$kill_bin/sluice" ]; then
    echo "test_resume: passed; the checkpoint's kill points were left out: there is no $kill_bin (make KILL_POINTS=1)"
    exit 0
fi
sluice=$kill_bin/sluice
points=$(sed -n 's/.*X(CHECKPOINT_[A-Z]*, "\([a-z.]*\)".*/\1/p' "$here/../shm/killpoint.h")
[ "$(echo "$points" | wc -w)" -ge 8 ] || fail "kill points: found '$points'"
for point in $points; do
    # The second checkpoint's; of it the scribe's points are passed by the weights, then by the state.
    case $point in *.synced | *.named) times='3 4' ;; *) times=2 ;; esac
    for nth in $times; do
        name=at-$nth-$point
        SLUICE_KILL_POINT=$point:$nth SLUICE_KILL_MARK=$work/$name.mark begin "$name"
        finish "$name" 1
        [ -s "$name.mark" ] || fail "$name: the run did not get there"
        [ "$(meta "$name" epoch)" -ge 1 ] || fail "$name: no whole state is left"
        resume "$name"
        same "$name"
        rm -rf "runs/$name"
    done
done
echo 'test_resume: passed'
