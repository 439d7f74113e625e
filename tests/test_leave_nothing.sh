#!/bin/sh
# SIGKILL of every kind of process of a run, alone and together, in every stage of its life: 3 s later there is
# no process, socket, memory, entry in the registry, lock or temporary file of the run.
# Stages are held by stopping a process that they need, so that the kill finds the run where it should.
set -u
bin=${SLUICE_BIN:-build/bin}
sluice=$bin/sluice
work=$(mktemp -d "${TMPDIR:-/tmp}/sluice-nothing.XXXXXX") || exit 1
mark=SLUICE_TEST_MARK=$(basename "$work")
pid= other=
marked() { grep -lsF "$mark" /proc/[0-9]*/environ 2>/dev/null | sed 's,/proc/\([0-9]*\)/.*,\1,'; }
trap 'for p in $(marked); do kill -KILL "$p" 2>/dev/null; done; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
cd "$work" || exit 1
export XDG_RUNTIME_DIR="$work"
name=none kills=0

fail() {
    echo "test_leave_nothing: $name: $*"
    for log in "$work/$name.out" "$work/status.txt"; do echo "--- $log" && tail -n 15 "$log"; done
    exit 1
}

"$sluice" sample out=sample images=24 imgsz=128 seed=1 >sample.out 2>&1 || fail 'sluice sample'
# Programs of which the scribe stands still before it has said hello: the opening takes a moment only, and the
# run is not listed yet.
mkdir slow
cp "$sluice" slow/
ln -s "$(readlink -f "$bin")/sluice-loader" "$(readlink -f "$bin")/sluice-trainer" slow/
cat >slow/sluice-scribe <<SCRIPT
#!/bin/sh
echo "scribe \$\$ opening" >"$work/status.new" && mv "$work/status.new" "$work/status.txt"
echo "endpoint=\$2" >"$work/slow.new" && mv "$work/slow.new" "$work/slow.pid"
kill -STOP \$\$
SCRIPT
chmod +x slow/sluice-scribe
program=$sluice
# The same images under many names, doubled and doubled again, so that the scan can be met at work.
cp -r sample many
for n in 1 2 3 4 5 6 7 8; do
    cp -rl many/images/train many/more && mv many/more many/images/train/$n
done
shm_before=$(ls /dev/shm 2>/dev/null)

# start NAME ARGUMENTS..: a run that would take minutes; ready when it is listed.
start() {
    name=$1
    shift
    env --default-signal=INT "$mark" "$program" train data=sample/data.yaml model=yolo11n imgsz=64 batch=8 nbs=8 \
        epochs=5000 patience=0 workers=2 project="$work/runs" name="$name" "$@" >"$name.out" 2>&1 </dev/null &
    pid=$!
    tries=0 listed=sluice/$pid.run
    [ "$program" = "$sluice" ] || listed=slow.pid
    rm -f slow.pid
    until [ -s "$listed" ]; do
        tries=$((tries + 1))
        [ $tries -lt 6000 ] && kill -0 $pid 2>/dev/null || fail 'it is not listed'
        sleep 0.01
    done
    endpoint=$(sed -n 's,^endpoint=ipc://,,p' "$listed")
}

# until_status AWK-CONDITION: over the lines of sluice status.
until_status() {
    tries=0
    until "$sluice" status $pid >status.txt 2>status.err && awk "$1 { n++ } END { exit n == 0 }" status.txt; do
        tries=$((tries + 1))
        [ $tries -lt 6000 ] && kill -0 $pid 2>/dev/null || fail "never saw $1"
        sleep 0.01
    done
}

child() { awk -v n="$1" '$1 == n { print $2; exit }' status.txt; }

# hold PROCESS: it stands still where it is now, if it is still there.
hold() { kill -STOP "$(child "$1")" 2>/dev/null; }

# step PROCESS AWK-CONDITION: what takes a moment only is reached in small steps; it stands still there.
step() {
    until_status "\$1 == \"$1\""
    stepped=$(child "$1") tries=0
    until kill -STOP "$stepped" 2>/dev/null && "$sluice" status $pid >status.txt 2>status.err &&
        awk "\$1 == \"$1\" && $2 { n++ } END { exit n == 0 }" status.txt; do
        tries=$((tries + 1))
        [ $tries -lt 6000 ] && kill -CONT "$stepped" 2>/dev/null || fail "$1 never stood still where $2"
        sleep 0.01
    done
}

reach() {
    case $1 in
    opening) return ;; # its pid is in status.txt already
    scan) until_status '$1 == "scan" || /: (starting|training)/' && hold scan ;;
    starting) until_status '$1 == "rank-0"' && hold rank-0 ;;
    training) until_status '$1 == "rank-0" && / [1-9][0-9]* images/' ;;
    validation) step rank-0 '$3 == "validating"' ;;
    checkpoint) step scribe '$3 == "checkpointing"' ;;
    leaving)
        until_status '$1 == "rank-0" && / [1-9][0-9]* images/'
        hold loader-0
        kill -INT $pid
        ;;
    esac
    "$sluice" status $pid >status.txt 2>status.err
}

# Whether the run stands where reach meant it to: a stage may have ended in the moment of the stop.
reached() {
    case $1 in
    opening) ;;
    scan) grep -q ': reading' status.txt && grep -q '^scan ' status.txt ;;
    starting) grep -q ': starting' status.txt ;;
    training) grep -q ': training' status.txt ;;
    validation) grep -q '^rank-0 .* validating' status.txt ;;
    checkpoint) grep -q '^scribe .* checkpointing' status.txt ;;
    leaving) grep -Eq ': (stopping|ending)' status.txt ;;
    esac
}

gone() {
    state=$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) || return 0
    case $state in Z* | X* | '') return 0 ;; esac
    return 1
}

# What is left of the run: a word and what for each thing.
census() {
    for p in $(marked); do gone "$p" || echo "process $p $(tr '\0' ' ' <"/proc/$p/cmdline" 2>/dev/null)"; done
    for p in $(marked); do ls -l "/proc/$p/fd" 2>/dev/null | grep -F memfd:sluice; done
    [ -r /proc/net/unix ] && grep -F "$endpoint" /proc/net/unix
    ls "sluice/$pid.run"* 2>/dev/null
    [ "$(ls /dev/shm 2>/dev/null)" = "$shm_before" ] || ls /dev/shm | grep -i sluice
    find runs \( -name '.sluice.lock' -o -name '*sluice-tmp' \) 2>/dev/null
}

nothing_left() {
    tries=0
    until [ -z "$(census)" ]; do
        tries=$((tries + 1))
        [ $tries -lt 30 ] || fail "left after 3 s: $(census)"
        sleep 0.1
    done
    wait "$pid" 2>/dev/null
    kills=$((kills + 1))
    # The directory is free: nothing that holds a lock is left.
    rm -rf "runs/$name"
}

pid_of() {
    case $1 in
    coordinator) echo $pid ;;
    loader) child loader-0 ;;
    trainer) child rank-0 ;;
    *) child "$1" ;;
    esac
}

# killed STAGE PROCESS..: all of them at once, in that stage.
killed() {
    stage=$1 again=0 data=sample/data.yaml
    [ "$stage" = scan ] && data=many/data.yaml
    program=$sluice
    [ "$stage" = opening ] && program=slow/sluice
    shift
    start "$(echo "$stage $*" | tr ' ' -)" data=$data
    reach "$stage"
    until reached "$stage"; do
        again=$((again + 1))
        [ $again -lt 10 ] || fail "never stood still in $stage"
        kill -KILL $pid
        nothing_left
        start "$name" data=$data
        reach "$stage"
    done
    victims=
    for p; do victims="$victims $(pid_of "$p")"; done
    kill -KILL $victims 2>/dev/null
    nothing_left
}

for stage in opening scan starting training validation checkpoint leaving; do
    killed $stage coordinator
    killed $stage scribe
done
for stage in starting training validation checkpoint leaving; do killed $stage trainer; done
killed scan scan

program=$sluice

# A loader alone is replaced and the run goes on: in one run, one stage after the other.
start loader
for stage in starting training validation checkpoint; do
    until_status '$1 == "loader-0"'
    old=$(child loader-0)
    reach $stage
    kill -KILL "$(child loader-0)" 2>/dev/null
    for p in rank-0 scribe; do kill -CONT "$(child $p)" 2>/dev/null; done
    until_status "\$1 == \"loader-0\" && \$2 != \"$old\""
    kills=$((kills + 1))
done
# In the end of a run too, which takes a moment only: should it be missed, another one is ended.
seen=no
for try in 1 2 3 4 5 6 7 8 9 10; do
    kill -INT $pid
    while kill -0 $pid 2>/dev/null; do
        "$sluice" status $pid >status.txt 2>status.err && grep -Eq ': (stopping|ending)' status.txt && seen=yes && break
        sleep 0.01
    done
    kill -KILL "$(child loader-1)" 2>/dev/null
    nothing_left
    [ $seen = no ] || break
    start loader
    reach training
done
[ $seen = yes ] || fail 'never seen at its end'

# Several at once, and all but one.
killed training coordinator scribe
killed checkpoint coordinator scribe
killed training loader trainer
killed checkpoint scribe trainer loader
killed training coordinator scribe loader-0 loader-1 # but the trainer
killed training coordinator scribe trainer loader-0  # but a loader
killed checkpoint coordinator trainer loader-0 loader-1 # but the scribe

# All: nobody is left to take the entry away, and the next look does.
start all
reach training
kill -KILL $pid $(awk '$2 ~ /^[0-9]+$/ { print $2 }' status.txt)
wait $pid 2>/dev/null
"$sluice" ps >ps.out 2>ps.err || fail "ps: exit status $?"
grep -q 'no run is alive' ps.out || fail "ps shows $(cat ps.out)"
nothing_left

# A coordinator that is killed takes those along that somebody has stopped.
start stopped
reach training
for p in scribe rank-0 loader-0 loader-1; do hold $p; done
kill -KILL $pid
nothing_left

# Two at once on one machine share nothing: one is killed, the other makes what it makes alone.
finish='epochs=2 digest=True close_mosaic=0 seed=3'
stream() { sed -n 's/.*"event":"epoch".*"stream":"\([0-9a-f]*\)".*/\1/p' "runs/$1/events.jsonl"; }
start alone $finish
wait $pid || fail "exit status $?"
want=$(stream alone)
[ "$(echo "$want" | grep -c .)" -eq 2 ] || fail "no digests of two epochs in its events: $want"
start doomed
other=$pid
reach training
start beside $finish
kill -KILL $other
wait $pid || fail "exit status $? beside a run that was killed"
[ "$(stream beside)" = "$want" ] || fail "another stream beside a run that was killed: $(stream beside)"
start first $finish
other=$pid
start second $finish
"$sluice" ps >status.txt 2>ps.err || fail "ps: exit status $?"
wait $pid || fail "exit status $?"
wait $other || fail "first: exit status $?"
[ "$(stream first)" = "$want" ] && [ "$(stream second)" = "$want" ] || fail 'two at once: another stream'

# A second run in the same directory is refused: by whom, since when.
start held
reach training
env "$mark" "$sluice" train data=sample/data.yaml model=yolo11n imgsz=64 batch=8 project="$work/runs" name=held \
    exist_ok=True >refused.out 2>&1 </dev/null
[ $? -eq 4 ] || fail "a second run in its directory: exit status $?"
grep -q "in use by another run (pid $pid, since 20" refused.out || fail "refused with: $(cat refused.out)"
grep -q "sluice stop $pid" refused.out || fail 'the refusal does not say what to do'
# ps and stop: at once, without a checkpoint.
"$sluice" ps >ps.out || fail "ps: exit status $?"
awk -v p=$pid '$1 == p && / training / { n++ } END { exit n != 1 }' ps.out || fail "ps shows: $(cat ps.out)"
"$sluice" ps --json | grep -q "^{\"pid\":$pid,\"run_dir\":\"$work/runs/held\"" || fail 'ps --json'
"$sluice" stop runs/held --now >stop.out 2>&1 || fail "stop --now: exit status $?: $(cat stop.out)"
grep -q 'ended with exit status 1: ended at once' stop.out || fail "stop --now says: $(cat stop.out)"
gone $pid || fail 'stop --now returned before the end'
wait $pid
[ $? -eq 1 ] || fail 'stop --now: exit status'
nothing_left
"$sluice" stop held >stop.out 2>&1
[ $? -eq 1 ] || fail 'stop of a run that is over: exit status'

# Ctrl-C within the first milliseconds: a documented status, and never the signal's.
name=early
for wait in 0 0.002 0.005 0.01 0.02 0.04 0.08; do
    env --default-signal=INT "$mark" "$sluice" train data=sample/data.yaml model=yolo11n imgsz=64 batch=8 \
        epochs=500 project="$work/runs" name=early >early.out 2>&1 </dev/null &
    pid=$!
    # Its first instruction has run, which holds SIGINT back (bit 1): before, no program is there that could take it.
    tries=0
    until [ "$(readlink /proc/$pid/exe)" = "$(readlink -f "$sluice")" ] &&
        grep -q '^SigBlk:.*[2367abef]$' /proc/$pid/status 2>/dev/null || ! kill -0 $pid 2>/dev/null; do
        tries=$((tries + 1))
        [ $tries -lt 10000 ] || fail 'it does not hold SIGINT back'
    done
    sleep $wait
    kill -INT $pid
    wait $pid
    got=$?
    [ $got -eq 1 ] || [ $got -eq 5 ] || fail "SIGINT after $wait s: exit status $got"
    [ $got -eq 5 ] || grep -q '^sluice: ' early.out || fail "SIGINT after $wait s: no sentence"
    nothing_left
done

# Closed standard streams: other files do not take their numbers, and the run does not mind.
name=closed
env "$mark" "$sluice" train data=sample/data.yaml model=yolo11n imgsz=64 batch=8 epochs=1 project="$work/runs" \
    name=closed <&- >&- 2>&- || fail "closed streams: exit status $?"
[ -s runs/closed/weights/best.safetensors ] || fail 'closed streams: no weights'
"$sluice" ps >&- 2>/dev/null
[ $? -eq 4 ] || fail 'ps with a closed output: exit status'

# nohup: an ignored SIGHUP stays ignored; elsewhere it is one interrupt. The terminal's end is no other.
name=hup
(trap '' HUP && exec env "$mark" "$sluice" train data=sample/data.yaml model=yolo11n imgsz=64 batch=8 nbs=8 epochs=5000 \
    patience=0 project="$work/runs" name=hup >hup.out 2>&1 </dev/null) &
pid=$!
tries=0
until [ -s "sluice/$pid.run" ]; do
    tries=$((tries + 1))
    [ $tries -lt 6000 ] && kill -0 $pid 2>/dev/null || fail 'it is not listed'
    sleep 0.01
done
reach training
before=$(awk '$1 == "rank-0" { for (i = 1; i < NF; i++) if ($(i + 1) == "images,") print $i }' status.txt)
kill -HUP $pid
until_status "\$1 == \"rank-0\" && \$2 > 0 { for (i = 1; i < NF; i++) if (\$(i + 1) == \"images,\" && \$i > $before + 40) n++ } 0"
kill -KILL $pid
nothing_left
if script -qec true /dev/null </dev/null >/dev/null 2>&1; then
    name=terminal
    # The terminal's owner dies: the run gets SIGHUP, and its writes to the terminal fail.
    env "$mark" script -qefc "exec $sluice train data=sample/data.yaml model=yolo11n imgsz=64 batch=8 nbs=8 \
        epochs=5000 patience=0 project=$work/runs name=terminal" /dev/null >terminal.out 2>&1 </dev/null &
    shell=$!
    tries=0
    until ls sluice/*.run >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 6000 ] && kill -0 $shell 2>/dev/null || fail 'it is not listed'
        sleep 0.01
    done
    pid=$(basename sluice/*.run .run)
    endpoint=$(sed -n 's,^endpoint=ipc://,,p' "sluice/$pid.run")
    reach training
    kill -KILL $shell
    wait $shell 2>/dev/null
    tries=0
    until gone $pid; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || fail 'it goes on without its terminal'
        sleep 0.1
    done
    grep -q '"event":"end","exit":5' runs/terminal/events.jsonl || fail "it ended otherwise: $(tail -n 3 runs/terminal/events.jsonl)"
    nothing_left
fi
echo "test_leave_nothing: passed, $kills kills"
