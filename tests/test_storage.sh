#!/bin/sh
# Storage that hangs, fills, fails or goes away: only the scribe and the loaders wait for it. The run directory
# or the data set lies in a file system (tests/slowfs) that does as it is told.
set -u
bin=${SLUICE_BIN:-build/bin}
sluice=$bin/sluice
slowfs=${SLUICE_BUILD:-build}/tests/slowfs
if [ "$(id -u)" -ne 0 ] || [ ! -c /dev/fuse ]; then
    echo 'needs root and /dev/fuse, for a file system that hangs when it is told to'
    exit 77
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/sluice-storage.XXXXXX") || exit 1
mark=SLUICE_TEST_MARK=$(basename "$work")
pid= server=
marked() { grep -lsF "$mark" /proc/[0-9]*/environ 2>/dev/null | sed 's,/proc/\([0-9]*\)/.*,\1,'; }
# The server's end aborts the connection, which lets go whoever the kernel holds in it.
unmount() {
    [ -n "$server" ] && kill -KILL "$server" 2>/dev/null && wait "$server" 2>/dev/null
    server=
    umount -l "$work/mnt" 2>/dev/null
}
cleanup() {
    for p in $(marked); do kill -KILL "$p" 2>/dev/null; done
    unmount
    umount -l "$work/small" 2>/dev/null
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM
cd "$work" || exit 1
export XDG_RUNTIME_DIR="$work"
mkdir -p mnt store small runs
name=none

fail() {
    echo "test_storage: $name: $*"
    for log in "$work/$name.out" "$work/status.txt" "$work/slowfs.log"; do
        echo "--- $log" && tail -n 15 "$log"
    done 2>/dev/null
    exit 1
}

mount_slow() {
    "$slowfs" mnt store control "$@" >slowfs.log 2>slowfs.err &
    server=$!
    tries=0
    until grep -q '^ready' slowfs.log; do
        tries=$((tries + 1))
        if [ $tries -ge 600 ] || ! kill -0 $server 2>/dev/null; then
            echo "a file system in user space cannot be mounted here: $(cat slowfs.err)"
            exit 77
        fi
        sleep 0.05
    done
}

# tell COMMAND: heard when this returns.
tell() {
    told=$(grep -c '^ok' slowfs.log)
    echo "$*" >control
    tries=0
    until [ "$(grep -c '^ok' slowfs.log)" -gt "$told" ]; do
        tries=$((tries + 1))
        [ $tries -lt 3000 ] || fail "slowfs does not hear '$*'"
        sleep 0.02
    done
}

# within TENTHS COMMAND..: until it succeeds, for at most that long.
within() {
    most=$1 tries=0
    shift
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt "$most" ] || fail "not within $most tenths of a second: $*"
        sleep 0.1
    done
}

# Since the last command.
held() { awk -v op="${1:-}" '/^ok/ { n = 0 } $1 == "held" && (op == "" || $2 == op) { n++ } END { exit n == 0 }' slowfs.log; }
said() { grep -q -- "$1" "$name.out"; }
gone() {
    state=$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) || return 0
    case $state in Z* | X* | '') return 0 ;; esac
    return 1
}

# start NAME ARGUMENTS..
start() {
    name=$1
    shift
    rm -f status.txt
    env --default-signal=INT "$mark" "$sluice" train model=yolo11n imgsz=64 batch=8 nbs=8 patience=0 workers=2 \
        close_mosaic=0 seed=3 name="$name" "$@" >"$name.out" 2>&1 </dev/null &
    pid=$!
}

# status: of the run, within the time that a command may take; the storage is not asked.
status() { timeout 20 "$sluice" status $pid >status.txt 2>status.err; }
shows() { status && awk "$1 { n++ } END { exit n == 0 }" status.txt; }
images() { status && awk '$1 == "rank-0" { for (i = 1; i < NF; i++) if ($(i + 1) == "images,") print $i }' status.txt; }
child() { awk -v n="$1" '$1 == n { print $2; exit }' status.txt; }
trains() { [ "$(images || echo 0)" -gt "$1" ] 2>/dev/null; }

# ended STATUS WORDS
ended() {
    wait $pid
    got=$?
    [ $got -eq "$1" ] || fail "exit status $got instead of $1"
    said "$2" || fail "does not say '$2'"
}

# No process of the run is left, but those that are named.
only_left() {
    for p in $(marked); do
        gone "$p" && continue
        case " $* " in *" $p "*) ;; *) return 1 ;; esac
    done
}

"$sluice" sample out=sample images=24 imgsz=128 seed=1 >sample.out 2>&1 || fail 'sluice sample'
local_data=data=$work/sample/data.yaml
# The same images under many names: epochs of some seconds.
cp -r sample many
for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
    for file in sample/images/train/*; do ln "$file" "many/images/train/$n-$(basename "$file")"; done
done
mkdir -p store/runs && cp -r sample store/data
slow_data=data=$work/mnt/data/data.yaml
mount_slow

# The run directory hangs in a checkpoint: training goes on, it is said who waits for what, and the files
# are there when it answers again.
start checkpoint data="$work/many/data.yaml" project="$work/mnt/runs" epochs=5000
within 1200 trains 0
within 1200 test -s mnt/runs/checkpoint/weights/last.state.safetensors
tell hang write,fsync 'runs/*/weights/*'
within 1200 held write
before=$(images)
within 1200 trains $((before + 200))
within 600 shows '$1 == "scribe" && $3 == "checkpointing"'
within 1200 said 'storage of .*mnt/runs/checkpoint .*does not answer: the scribe (pid .*training goes on'
old=$(stat -c %Y.%i store/runs/checkpoint/weights/last.state.safetensors)
tell release
within 600 said 'answers again'
newer() { [ "$(stat -c %Y.%i store/runs/checkpoint/weights/last.state.safetensors)" != "$old" ]; }
within 900 newer
timeout 60 "$sluice" stop checkpoint >stop.out 2>&1 || fail "stop: exit status $?: $(cat stop.out)"
ended 5 'after'
[ -z "$(find store/runs -name '.sluice*' -o -name '*sluice-tmp')" ] || fail 'a lock or temporary file is left'

# It hangs for ever, and the user stops: bounded, with a sentence; who cannot be ended is named.
start forever $local_data project="$work/mnt/runs" epochs=5000 stop_deadline=3
within 1200 trains 0
within 1200 test -s mnt/runs/forever/weights/last.state.safetensors
status
scribe=$(child scribe)
tell hang all '*'
within 1200 held
ln -s mnt/runs elsewhere
timeout 20 "$sluice" status "$work/mnt/runs/forever" >status.txt || fail 'status waits for the storage'
timeout 20 "$sluice" status "$work/elsewhere/forever" >status.err 2>&1
[ $? -ne 124 ] || fail 'status waits for the storage behind a link'
timeout 20 "$sluice" ps >ps.out || fail 'ps waits for the storage'
grep -q 'mnt/runs/forever' ps.out || fail "ps shows $(cat ps.out)"
timeout 60 "$sluice" stop "$work/mnt/runs/forever" >stop.out 2>&1
[ $? -eq 1 ] || fail "stop: $(cat stop.out)"
grep -q 'not written\|not be written' stop.out || fail "stop says: $(cat stop.out)"
ended 1 "scribe (pid $scribe) was killed and does not end: the kernel holds it"
within 30 only_left "$scribe"
gone "$scribe" && fail 'the scribe could be ended: the test does not show what it should'
unmount
within 30 only_left
mount_slow

# Without files that have no name: a scribe that is killed in a write leaves one, which others remove.
for victim in scribe coordinator; do
    start "cut-$victim" $local_data project="$work/mnt/runs" epochs=5000
    within 1200 trains 0
    [ -e "store/runs/$name/.sluice.lock" ] || fail 'no lock file where one is needed'
    tell delay write 'runs/*/weights/.*' 20
    temporary() { [ -n "$(find "store/runs/$name" -name '*sluice-tmp')" ]; }
    within 1200 temporary
    status
    [ $victim = scribe ] && kill -KILL "$(child scribe)" || kill -KILL $pid
    tell release
    clean() { ! temporary && [ ! -e "store/runs/$name/.sluice.lock" ] && [ ! -e "sluice/$pid.run" ] && only_left; }
    within 30 clean
    wait $pid 2>/dev/null
done

# Another start meets the lock file, and says whose it is.
start first $local_data project="$work/mnt/runs" epochs=5000
within 1200 trains 0
first=$pid
start refused $local_data project="$work/mnt/runs" name=first exist_ok=True
ended 4 "in use by another run (pid $first, since 20"
pid=$first
timeout 60 "$sluice" stop first --now >stop.out 2>&1 || fail "stop --now: $(cat stop.out)"
wait $pid

# The data set hangs: loaders and trainer wait, status names the file, and the stream is what it was.
stream() { sed -n 's/.*"event":"epoch".*"stream":"\([0-9a-f]*\)".*/\1/p' "runs/$1/events.jsonl"; }
unmount
mount_slow direct
start plain $local_data project="$work/runs" epochs=16 digest=True
ended 0 'done after 16 epochs'
# A run that has read all that it needs by then is begun again.
over() { gone $pid; }
held_or_over() { held read || over; }
for try in 1 2 3 4 5 6 7 8; do
    rm -rf runs/data
    start data $slow_data project="$work/runs" epochs=16 digest=True
    within 1200 trains 0
    tell hang read 'data/images/train/*'
    within 600 held_or_over
    held read && break
    wait $pid
    tell release
done
within 600 shows '$1 == "rank-0" && /waiting for data/'
within 600 shows "/^ +(open|read) for .* s: .*data\\/images\\/train\\//"
tell release
ended 0 'done after 16 epochs'
[ -n "$(stream plain)" ] && [ "$(stream data)" = "$(stream plain)" ] || fail 'another stream after a data set that hung'

# A stop while it hangs, and a scan that hangs.
start datastop $slow_data project="$work/runs" epochs=5000 stop_deadline=4
within 1200 trains 0
tell hang read,meta 'data/images/train/*'
within 600 shows '$1 == "rank-0" && /waiting for data/'
timeout 60 "$sluice" stop datastop >stop.out 2>&1
[ $? -ne 124 ] || fail 'stop: no end'
wait $pid
got=$?
[ $got -eq 5 ] || [ $got -eq 1 ] || fail "exit status $got"
said 'loader-. (pid .*) was killed and does not end: the kernel holds it' || fail 'the loader is not named'
tell release
within 30 only_left
tell hang read,meta 'data/images/*'
start scan $slow_data project="$work/runs" epochs=1
within 1200 shows '/reading the data set/'
within 600 held
kill -INT $pid
ended 1 'Ctrl-C'
tell release
within 30 only_left
[ ! -e runs/scan ] || fail 'a run directory is left'

# A file that cannot be read any more: another in its place, and an end in good order.
for try in 1 2 3 4 5 6 7 8; do
    rm -rf runs/eio
    start eio $slow_data project="$work/runs" epochs=8
    within 1200 trains 0
    tell fail read "data/images/train/$(ls store/data/images/train | head -n 1)" EIO
    wait $pid
    got=$?
    tell release
    said 'bad sample: ' && break
done
[ $got -eq 0 ] || fail "exit status $got instead of 0"
said 'bad sample: .*Input/output error' || fail "does not say 'bad sample', in $try tries"

# Full at a checkpoint: the last good files are whole, it is said, and the end says so too.
start full $local_data project="$work/mnt/runs" epochs=30
within 1200 test -s store/runs/full/weights/last.state.safetensors
tell fail write 'runs/full/weights/*' ENOSPC
good=$(md5sum <store/runs/full/weights/last.state.safetensors)
ended 1 'checkpoint of epoch .* was not written: .*No space left on device, .* MB are free'
[ "$(md5sum <store/runs/full/weights/last.state.safetensors)" = "$good" ] || fail 'the last good state is not whole'
tail -n 1 full.out | grep -q 'was not written: .*No space left' || fail "its last words: $(tail -n 1 full.out)"
# Two files a checkpoint: once each checkpoint, not once each file.
[ "$(grep -c 'checkpoint of epoch 30 was not written' full.out)" -eq 1 ] || fail 'it is not said once a checkpoint'
tell release

# Read-only, from the start and later on.
tell fail meta 'runs/readonly' EROFS
start readonly $local_data project="$work/mnt/runs" epochs=2
ended 4 'Read-only file system'
tell release
start readonly $local_data project="$work/mnt/runs" epochs=5000
within 1200 trains 0
tell fail meta 'runs/readonly/weights/.*' EROFS
within 900 said 'was not written: .*Read-only file system'
kill -INT $pid
ended 1 'was not written'
tell release
unmount

# The same on a small disk that is really full, the logs too.
if mount -t tmpfs -o size=150m none small 2>/dev/null; then
    start tmpfs $local_data project="$work/small/runs" epochs=5000
    within 1200 test -s small/runs/tmpfs/weights/last.state.safetensors
    dd if=/dev/zero of=small/fill bs=64k >/dev/null 2>&1
    within 900 said 'was not written: .*No space left on device'
    within 600 said 'cannot append .*No space left on device, .*lines are left out'
    before=$(images)
    within 900 trains $((before + 50))
    rm small/fill
    within 900 said 'can be written again'
    old=$(stat -c %i small/runs/tmpfs/weights/last.state.safetensors)
    new_state() { [ "$(stat -c %i small/runs/tmpfs/weights/last.state.safetensors)" != "$old" ]; }
    within 900 new_state
    timeout 60 "$sluice" stop tmpfs >stop.out 2>&1 || fail "stop: $(cat stop.out)"
    ended 5 'after'
    umount -l small
fi

# The run directory is removed under the run.
start removed $local_data project="$work/runs" epochs=5000
within 1200 trains 0
mv runs/removed runs/moved && rm -rf runs/moved
within 900 said 'was removed while the run was on'
kill -INT $pid
ended 1 'not written'
within 30 only_left
echo 'test_storage: passed'
