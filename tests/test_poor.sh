#!/bin/sh
# Poor machines: what is denied, small, missing or strange (tests/poor/poorly.c makes it so) either makes no
# difference to the batch stream, or is one sentence and exit status 4. What this machine does not let us make is
# skipped by name.
set -u
bin=${SLUICE_BIN:-build/bin}
build=${SLUICE_BUILD:-build}
sluice=$bin/sluice
poorly=$build/poorly
work=$(mktemp -d "${TMPDIR:-/tmp}/sluice-poor.XXXXXX") || exit 1
chmod 755 "$work"
pid= held= skipped=0 done=0
trap 'for p in $held $pid; do kill -KILL "$p" 2>/dev/null; done; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
cd "$work" || exit 1
export XDG_RUNTIME_DIR="$work"
mkdir -m 1777 runs

fail() {
    echo "test_poor: $*"
    [ -r "$name.out" ] && echo "--- $name" && tail -n 30 "$name.out"
    exit 1
}

skip() {
    echo "test_poor: $name is skipped: $(tail -n 1 "$name.out")"
    skipped=$((skipped + 1))
}

# poor [WORDS..] -- COMMAND..: runs it, keeps its output and exit status. 1: this machine cannot be made so poor.
poor() {
    timeout -k 5 180 "$poorly" "$@" >"$name.out" 2>&1 </dev/null
    got=$?
    [ $got -eq 77 ] && skip && return 1
    done=$((done + 1))
    return 0
}

small='data=sample/data.yaml imgsz=64 batch=8 epochs=2 workers=2 device=cpu close_mosaic=0'
trial="data=sample/data.yaml model=yolo11n imgsz=64 batch=8 nbs=8 epochs=1 patience=0 workers=2 device=cpu close_mosaic=0 project=$work/runs"

# same NAME WORDS [OPTIONS..] -- [COMMAND..]: the stream is the one of any machine. WORDS, if any, are said exactly once.
same() {
    name=$1 words=$2
    shift 2
    poor "$@" "$sluice" digest $small $more || return 0
    [ $got -eq 0 ] || fail "$name: exit status $got"
    [ "$(tail -n 1 "$name.out" | cut -d ' ' -f 1)" = stream ] || grep -q '^stream ' "$name.out" || fail "$name: no stream"
    [ "$(grep '^stream ' "$name.out")" = "$stream" ] || fail "$name: another stream than $stream"
    [ -z "$words" ] || [ "$(grep -c -- "$words" "$name.out")" -eq 1 ] || fail "$name: does not say '$words' once"
}

# trains NAME WORDS [OPTIONS..] -- [COMMAND..]: a run to its end.
trains() {
    name=$1 words=$2
    shift 2
    poor "$@" "$sluice" train $trial name="$name" $more || return 0
    [ $got -eq 0 ] || fail "$name: exit status $got"
    [ "$(wc -l <"runs/$name/results.csv")" -ge 2 ] || fail "$name: no row in results.csv"
    [ -z "$words" ] || grep -q -- "$words" "$name.out" || fail "$name: does not say '$words'"
}

# refused NAME WORDS [OPTIONS..] -- COMMAND..: one sentence, exit status 4, no run directory.
refused() {
    name=$1 words=$2
    shift 2
    poor "$@" || return 0
    [ $got -eq 4 ] || fail "$name: exit status $got instead of 4"
    grep '^sluice: ' "$name.out" | grep -q -- "$words" || fail "$name: does not say '$words'"
    [ "$(grep -c '^sluice: ' "$name.out")" -eq 1 ] || fail "$name: more than one sentence"
    [ ! -e "runs/$name" ] || fail "$name: a run directory is left"
}
digest="$sluice digest $small"
train() { echo "$sluice train $trial name=$1"; }

name=sample more=
"$sluice" sample out=sample images=24 imgsz=128 seed=1 >sample.out 2>&1 || fail 'sluice sample'
name=plain
"$sluice" digest $small >plain.out 2>&1 || fail plain
stream=$(grep '^stream ' plain.out) || fail 'plain: no stream'

# System calls that a container's profile denies.
more='workers=5'
same no_uring 'io_uring.*threads instead' --deny=io_uring --
same no_uring_call 'io_uring.*threads instead' --deny=io_uring:ENOSYS --
more=
same no_pidfd '' --deny=pidfd --
same no_pidfd_call '' --deny=pidfd:ENOSYS --
same no_close_range '' --deny=close_range:ENOSYS --
same no_affinity '' --deny=affinity --
same no_clone3 '' --deny=clone3:ENOSYS --
refused no_eventfd 'eventfd' --deny=eventfd -- $digest
refused no_epoll 'epoll' --deny=epoll:ENOSYS -- $(train no_epoll)
refused no_socket 'socket' --deny=socket -- $digest
refused no_memfd 'memfd_create is denied' --deny=memfd -- $(train no_memfd)
refused no_signalfd 'signalfd' --deny=signalfd -- $digest
refused no_fallocate 'reserving' --deny=fallocate -- $digest

# Limits of the user.
same shm_64m '' --shm=64M --
same shm_none '' --shm=none --
same memlock_64k '' --rlimit=memlock=64k --
same memlock_0 '' --rlimit=memlock=0 --user --
same files_64 '' --rlimit=nofile=64 --
refused files_16 'ulimit -n' --rlimit=nofile=16 -- $(train files_16)
refused files_loaders 'lower workers' --rlimit=nofile=256 -- $digest workers=1000
same stack_256k '' --rlimit=stack=256k --
refused stack_64k 'ulimit -s' --rlimit=stack=64k -- $digest
refused stack_32k 'ulimit -s' --rlimit=stack=32k -- $(train stack_32k)
refused tasks_2 'ulimit -u' --user --rlimit=nproc=2 -- $digest
refused addresses 'memory' --rlimit=as=150M -- $(train addresses)
refused file_size 'ulimit -f' --rlimit=fsize=64k -- $(train file_size)

# A memory limit. What the start table says is enough; what is refused says so before anything is killed.
refused memory_rings 'ring_depth' --memory=300M -- $digest imgsz=640 ring_depth=64
refused memory_loaders 'workers (1000)' --memory=1G -- $digest workers=1000
refused memory_trainer 'checkpoints' --memory=200M -- $(train memory_trainer)
name=memory_plain
"$sluice" train $trial name=memory_plain >memory_plain.out 2>&1 || fail memory_plain
most=$(sed -n 's/^  memory  *at most \([0-9]*\) MiB.*/\1/p' memory_plain.out)
[ "${most:-0}" -gt 100 ] || fail 'memory_plain: the start table does not say what the run may hold'
trains memory_enough '' --memory=$((most + 24))M --
[ ! -r runs/memory_enough/events.jsonl ] || ! grep -q dead runs/memory_enough/events.jsonl || fail 'memory_enough: a process died'

# Few processors, many loaders.
trains one_core 'on 1 CPU' --cpus=1 --
same one_core_stream '' --cpus=1 --
trains quota 'on 1 CPU' --quota=90 --
more='workers=1000'
same thousand '' --cpus=2 --
more=

# Places that are missing or closed.
trains no_proc '' --hide=/proc --
same no_proc_sys '' --hide=/proc --hide=/sys --
same hidepid '' --new=pid --hidepid --user --
trains root_ro 'sluice status will not find' --root-ro --rw="$work/runs" -- env -u HOME -u XDG_RUNTIME_DIR -u TMPDIR
refused root_ro_all 'Read-only' --root-ro -- env -u HOME -u XDG_RUNTIME_DIR -u TMPDIR $(train root_ro_all)
trains umask '0077' --umask=0777 --user --
trains bare '' --user -- env -i
trains locale '' -- env LC_ALL=tr_TR.UTF-8 LANG=nowhere LC_NUMERIC=de_DE.UTF-8
! grep -q '[0-9],[0-9]*;' runs/locale/results.csv || fail 'locale: numbers with a comma'
trains environment '' -- env LARGE="$(head -c 120000 /dev/zero | tr '\0' x)" MORE="$(head -c 120000 /dev/zero | tr '\0' y)"

# A wall clock that jumps by a year every second: nothing waits for it, nothing ends by it.
case $(nm "$sluice" 2>/dev/null | grep -c __asan_init) in
0 | '')
    same wall_clock_stream '' -- env LD_PRELOAD="$build/wallclock.so"
    more="epochs=5"
    trains wall_clock '' -- env LD_PRELOAD="$build/wallclock.so"
    more=
    cut -c 1-4 runs/wall_clock/logs/*.log | sort -u | wc -l | grep -qx '[23]' || fail 'wall_clock: it did not jump'
    awk -F , 'NR > 1 { bad += $2 + 0 < last || $2 > 1e6; last = $2 + 0 } END { exit bad != 0 }' runs/wall_clock/results.csv ||
        fail 'wall_clock: the time in results.csv jumps'
    ;;
esac

# begin NAME [OPTIONS..] -- [COMMAND..]: a run that would take minutes, ready when a rank has made a step. $pid is
# poorly's, $run the coordinator's. 1: this machine cannot be made so poor.
begin() {
    name=$1
    shift
    "$poorly" "$@" "$sluice" train $trial name="$name" epochs=500 >"$name.out" 2>&1 </dev/null &
    pid=$! tries=0
    until grep -q '"event":"start"' "runs/$name/events.jsonl" 2>/dev/null && grep -q '^  length' "$name.out"; do
        tries=$((tries + 1))
        if ! kill -0 $pid 2>/dev/null; then
            wait $pid
            got=$?
            pid=
            [ $got -eq 77 ] && skip && return 1
            fail "$name: exit status $got"
        fi
        [ $tries -lt 1200 ] || fail "$name: no start within 120 s"
        sleep 0.1
    done
    run=$(children $pid)
    done=$((done + 1))
}

# Processes whose parent is $1, and with a second word those in that state.
children() { sed -n "s/^\([0-9]*\) .*) ${2:-.} $1 .*/\1/p" /proc/[0-9]*/stat 2>/dev/null; }

# asks NAME PID: a command that cannot ask the run says so.
asks() {
    name=$1
    poor --deny=eventfd -- "$sluice" status "$2" || return 0
    [ $got -eq 4 ] && grep -q '^sluice: .*eventfd' "$name.out" || fail "$name: exit status $got"
}

# Without pidfds an end is told by SIGCHLD: a killed loader is seen and replaced.
if begin killed --deny=pidfd --; then
    for p in $(children "$run"); do grep -q sluice-loader "/proc/$p/cmdline" 2>/dev/null && kill -KILL "$p" && break; done
    tries=0
    until grep -q '"event":"loader-dead"' runs/killed/events.jsonl; do
        tries=$((tries + 1))
        [ $tries -lt 1200 ] || fail 'killed: the death of a loader is not seen'
        sleep 0.05
    done
    asks ask_no_eventfd "$run"
    name=killed
    kill -TERM $pid
    wait $pid
    got=$?
    pid=
    [ $got -eq 5 ] || fail "killed: exit status $got"
fi

# Process 1 of a container: signals reach it, and it reaps those that lose their parent.
if begin first --new=pid -- sh -c '(sleep 0.2 & sleep 0.4 &); exec "$0" "$@"'; then
    sleep 1
    tries=0
    until [ -z "$(children "$run" Z)" ]; do
        tries=$((tries + 1))
        [ $tries -lt 100 ] || fail "first: zombies are left: $(children "$run" Z)"
        sleep 0.1
    done
    kill -TERM $pid
    wait $pid
    got=$?
    pid=
    [ $got -eq 5 ] || fail "first: exit status $got after SIGTERM"
fi
if begin first_int --new=pid --; then
    kill -INT $pid
    wait $pid
    got=$?
    pid=
    [ $got -eq 5 ] || fail "first_int: exit status $got after SIGINT"
fi

# No network: the run and those who ask for it meet all the same.
name=no_network
if poor --new=net -- sh -c '"$@" & p=$! n=0; until '"$sluice"' status $p >/dev/null 2>&1 || ! kill -0 $p || [ $((n += 1)) -gt 1200 ]; do sleep 0.1; done
    sleep 0.5; '"$sluice"' stop $p && wait $p' sh "$sluice" train $trial name=no_network epochs=500; then
    [ $got -eq 5 ] || [ $got -eq 1 ] || fail "no_network: exit status $got"
    grep -q 'stopp' no_network.out || fail 'no_network: sluice stop was not heard'
fi

# A coordinator that was stopped itself has its deadlines begin anew: the rank is held beyond stop_deadline, but
# most of that time the coordinator was held too.
more=
trial="$trial stop_deadline=6 exist_ok=True"
# A stop wakes who is stopped: should the rank slip through to its checkpoint, the run is begun again.
for try in 1 2 3 4 5; do
    rm -rf runs/paused
    begin paused --
    rank=
    for p in $(children "$run"); do grep -q sluice-trainer "/proc/$p/cmdline" 2>/dev/null && rank=$p; done
    [ -n "$rank" ] || fail 'paused: no trainer'
    while kill -STOP "$rank" 2>/dev/null; do sleep 0.01; done &
    held=$!
    kill -TERM "$run"
    tries=0
    until grep -q 'checkpoint' paused.out; do
        tries=$((tries + 1))
        [ $tries -lt 1200 ] || fail 'paused: SIGTERM is not heard'
        sleep 0.05
    done
    kill -STOP "$run" 2>/dev/null && sleep 7
    kill -CONT "$run" 2>/dev/null && sleep 0.5
    kill -KILL $held 2>/dev/null
    wait $held 2>/dev/null
    held=
    kill -CONT "$rank" 2>/dev/null
    wait $pid
    got=$?
    pid=
    [ $got -eq 5 ] || fail "paused: exit status $got"
    grep -q 'deadlines start anew' paused.out && break
done
grep -q 'deadlines start anew' paused.out || fail "paused: it does not know that it was stopped, in $try tries"

for p in /proc/[0-9]*; do
    case $(readlink "$p/cwd" 2>/dev/null) in "$work"*) grep -q sluice- "$p/cmdline" 2>/dev/null && fail "process ${p#/proc/} is left" ;; esac
done
[ $done -gt 0 ] || { echo "test_poor: nothing could be made poor here" && exit 77; }
echo "test_poor: $done machines, $skipped skipped"
