#!/bin/sh
# A process that dies, or stands still, at each transition of the claim word, the slot and the fence, and
# loaders that die at random instants: the batch stream is the same to the bit, what cannot go on ends with one
# sentence or with its coordinator, and nothing is left. Needs programs with kill points, which make test builds
# in BUILD-kill; the points of a checkpoint have a test of their own.
#   SEED=n repeats the random instants of an earlier run, KILLS=n changes their number (200).
set -u
build=$(cd "${SLUICE_BUILD:-build}" && pwd) || exit 1
kill_build=$build-kill
sluice=$kill_build/bin/sluice
if [ ! -x "$sluice" ] || [ ! -x "$kill_build/bin/sluice-trainer" ]; then
    echo "no programs with kill points: make KILL_POINTS=1 BUILD=$kill_build"
    exit 77
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/sluice-points.XXXXXX") || exit 1
pid=
leave() {
    [ -n "$pid" ] && kill -KILL "$pid" 2>/dev/null
    for p in $(alive); do kill -KILL "$p" 2>/dev/null; done
    rm -rf "$work"
}
trap leave EXIT
trap 'exit 1' INT TERM
cd "$work" || exit 1
export XDG_RUNTIME_DIR="$work" SLUICE_KILL_MARK="$work/mark"
unset SLUICE_KILL_POINT
began=$(date +%s)

fail() {
    echo "test_kill_points: $*"
    for log in "$work"/*.err; do echo "--- $log" && tail -n 15 "$log"; done
    exit 1
}

# Processes of this test's runs, zombies left out: known by the mark in their environment.
alive() {
    for p in /proc/[0-9]*; do
        read -r comm 2>/dev/null <"$p/comm" || continue
        case $comm in sluice*) grep -qs "SLUICE_KILL_MARK=$work/mark" "$p/environ" && echo "${p#/proc/}" ;; esac
    done
}

nothing_left() {
    tries=0
    while [ -n "$(alive)" ]; do
        tries=$((tries + 1))
        [ $tries -lt 30 ] || fail "$1: process $(alive) is still there after 3 s"
        sleep 0.1
    done
}

# until_true SECONDS COMMAND..
until_true() {
    tries=$(($1 * 50))
    shift
    until "$@"; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || return 1
        sleep 0.02
    done
}

points() { "$build/tests/test_killpoint" --list | awk -v who="$1" '$2 == who { print $1 }'; }

small='data=sample/data.yaml device=cpu imgsz=96 batch=8 ring_depth=3 epochs=2 close_mosaic=0 workers=3'
large='data=sample/data.yaml device=cpu imgsz=320 batch=8 epochs=12 close_mosaic=0 workers=3'
storm='data=sample/data.yaml device=cpu imgsz=640 batch=8 epochs=30 close_mosaic=0 workers=4'

# digest NAME OPTIONS..: in the background, armed by SLUICE_KILL_POINT.
digest() {
    name=$1
    shift
    rm -f mark
    "$sluice" digest "$@" >"$name.out" 2>"$name.err" </dev/null &
    pid=$!
}

# ended WHAT: waits for the run, for two minutes at most; its exit status in rc.
ended() {
    until_true 120 over || fail "$1: no end within 120 s"
    wait "$pid"
    rc=$?
    pid=
}

marked() { [ -s mark ]; }
# Stopped; or the run is over, which wakes everybody (a loader that has no cell holds nothing up).
stopped() { case $(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) in T*) ;; *) over ;; esac; }
over() { case $(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null) in Z* | X* | '') ;; *) return 1 ;; esac; }
marked_or_over() { marked || over; }

# same REFERENCE: the digest that runs has ended well and the batches are the same; 1: its point was not reached.
same() {
    ended "$SLUICE_KILL_POINT"
    [ $rc -eq 0 ] || fail "$SLUICE_KILL_POINT: exit status $rc"
    cmp -s "$1.out" "$name.out" || fail "$SLUICE_KILL_POINT: other batches"
    nothing_left "$SLUICE_KILL_POINT"
    [ -z "$SLUICE_KILL_POINT" ] || marked
}

# A process stands still there for a while, then goes on (CONT) or is killed (KILL).
let_go() {
    until_true 120 marked_or_over || fail "$SLUICE_KILL_POINT: not reached, and no end"
    marked || return 0
    victim=$(cut -d ' ' -f 1 mark)
    until_true 30 stopped "$victim" || fail "$SLUICE_KILL_POINT: $victim does not stop"
    sleep 0.15
    kill -"$1" "$victim" 2>/dev/null
}

# reached REFERENCE [SIGNAL]: the run that begin_it begins passes its point, where a process is killed or, with a SIGNAL,
# stopped and let go by it. Which process gets where is chance: a run in which none got there is begun again.
reached() {
    for attempt in 1 2 3 4 5 6 7 8; do
        begin_it
        [ $# -lt 2 ] || let_go "$2"
        same "$1" && return
    done
    fail "$SLUICE_KILL_POINT: not reached in $attempt runs"
}

"$sluice" sample out=sample images=40 imgsz=128 seed=3 >sample.err 2>&1 || fail 'sluice sample'
export SLUICE_KILL_POINT=
for size in small large storm; do
    eval "digest $size \$$size"
    ended "$size"
    [ $rc -eq 0 ] || fail "the $size run without a kill: exit status $rc"
done
[ ! -e mark ] || fail 'a process that is not armed has fired'

# ---- loaders, killed and stopped ----

STOP=19 # as Linux numbers it on the machines that are supported
count=0
begin_it() { digest killed $small; }
for point in $(points loader); do
    # A loader waits for a cell once or twice in so short a run.
    case $point in loop.wait) later=1 ;; *) later=5 ;; esac
    for nth in 1 $later; do
        SLUICE_KILL_POINT=$point:$nth
        reached small
    done
    SLUICE_KILL_POINT=$point:1:$STOP
    reached small CONT
    SLUICE_KILL_POINT=$point:$((later / 2 + 1)):$STOP
    reached small KILL
    count=$((count + 1))
done
[ $count -ge 9 ] || fail "only $count points of a loader"

# A loader that gives its cells back because fewer are wanted: scaled until one has cells to give back. Whether it
# has any is chance, so a run that came to its end without (its batches are the same all the same) is begun again.
scale_until_reached() {
    digest leaving $large
    while :; do
        for n in 1 3; do
            marked_or_over && return
            sleep 0.1
            "$sluice" scale "$pid" workers=$n >scale.err 2>&1
        done
    done
}
for point in $(points leaving); do
    for how in 1 2 1:$STOP; do
        SLUICE_KILL_POINT=$point:$how
        for attempt in 1 2 3 4 5 6 7 8; do
            scale_until_reached
            marked && break
            ended "$SLUICE_KILL_POINT, attempt $attempt"
            [ $rc -eq 0 ] || fail "$SLUICE_KILL_POINT: exit status $rc"
            cmp -s large.out leaving.out || fail "$SLUICE_KILL_POINT: other batches"
        done
        marked || fail "$SLUICE_KILL_POINT: not reached in $attempt runs"
        case $how in *:*) let_go CONT ;; esac
        same large || fail "$SLUICE_KILL_POINT: the mark is gone"
        count=$((count + 1))
    done
done

# Files that go when the loaders come, as in test_digest: a program of the loader's name takes them away.
mkdir -p bin kept
ls sample/images/train/* | sed -n '3p;9p;17p;18p' >victims
cp $(cat victims) kept/
cp "$sluice" bin/sluice
cat >bin/sluice-loader <<SCRIPT
#!/bin/sh
case " \$* " in *' --scan '*) ;; *) (cd "$work" && rm -f \$(cat victims)) ;; esac
exec "$kill_build/bin/sluice-loader" "\$@"
SCRIPT
chmod +x bin/sluice-loader
whole=$sluice
sluice=$work/bin/sluice
gone() {
    while read -r file; do cp "kept/$(basename "$file")" "$file"; done <victims
    digest "$1" $small
}
SLUICE_KILL_POINT=
gone bad
same bad
begin_it() { gone killed; }
[ "$(grep -c 'another image is used' bad.err)" -eq 4 ] || fail 'not each of 4 files that are gone is told once'
for point in $(points bad); do
    for nth in 1 3; do
        SLUICE_KILL_POINT=$point:$nth
        reached bad
    done
    SLUICE_KILL_POINT=$point:2:$STOP
    reached bad CONT
    count=$((count + 1))
done
sluice=$whole
while read -r file; do cp "kept/$(basename "$file")" "$file"; done <victims

# ---- the slot, and the fence: in sluice digest the coordinator takes the batches ----

for point in $(points trainer); do
    SLUICE_KILL_POINT=$point:2:$STOP
    begin_it() { digest slot $small; }
    reached small CONT
done

# A loader is killed until the coordinator gets to the point. Where it is killed itself, that ends the run.
kill_a_loader() {
    marked_or_over && return 0
    victim=$("$sluice" status "$pid" 2>/dev/null | awk '$1 ~ /^loader-/ && $2 ~ /^[0-9]+$/ { print $2; exit }')
    [ -n "$victim" ] && kill -KILL "$victim" 2>/dev/null
    sleep 0.1
    marked_or_over
}
coordinator_gone() {
    ended "$SLUICE_KILL_POINT"
    [ $rc -eq 137 ] || fail "$SLUICE_KILL_POINT: exit status $rc, not a kill's"
    marked || fail "$SLUICE_KILL_POINT: not reached"
    nothing_left "$SLUICE_KILL_POINT"
}
# Until a loader died with cells of its own: a run that is over before, or was given up for so many deaths without an
# image in between, is begun again.
kill_until_reached() {
    for attempt in 1 2 3 4 5 6 7 8; do
        digest alone $large
        until_true 120 kill_a_loader || fail "$SLUICE_KILL_POINT: not reached, and no end"
        marked && return
        ended "$SLUICE_KILL_POINT"
        [ $rc -eq 0 ] || grep -q 'loaders keep dying' alone.err || fail "$SLUICE_KILL_POINT: exit status $rc"
    done
    fail "$SLUICE_KILL_POINT: not reached in $attempt runs"
}
for point in $(points fence); do
    SLUICE_KILL_POINT=$point
    kill_until_reached
    coordinator_gone
    SLUICE_KILL_POINT=$point:1:$STOP
    kill_until_reached
    let_go CONT
    same large || fail "$SLUICE_KILL_POINT: the mark is gone"
    count=$((count + 1))
done
for point in $(points coordinator); do
    SLUICE_KILL_POINT=$point
    digest alone $small
    coordinator_gone
    count=$((count + 1))
done

# ---- the trainer: until trainers are restarted, its death ends the run ----

for point in $(points trainer); do
    # The coordinator passes ring.slot.* too, when it arms the rings: not so often.
    case $point in ring.slot.word) nth=70 ;; ring.slot.words) nth=9 ;; *) nth=2 ;; esac
    SLUICE_KILL_POINT=$point:$nth
    rm -f mark
    timeout 180 "$sluice" train data=sample/data.yaml model=yolo11n imgsz=32 batch=8 nbs=8 epochs=50 workers=2 \
        device=cpu project="$work/runs" name=trainer exist_ok=True >train.out 2>train.err </dev/null
    rc=$?
    marked || fail "$SLUICE_KILL_POINT: not reached, exit status $rc"
    [ $rc -eq 1 ] || fail "$SLUICE_KILL_POINT: exit status $rc instead of 1"
    [ "$(cat train.out train.err | grep -c '^sluice: ')" -eq 1 ] || fail "$SLUICE_KILL_POINT: not one sentence"
    cat train.out train.err | grep '^sluice: ' | grep -q 'rank-0 .*signal 9' || fail "$SLUICE_KILL_POINT: rank-0 is not named"
    nothing_left "$SLUICE_KILL_POINT"
    count=$((count + 1))
done

# ---- the ring alone: rewind, and each of its points ----

unset SLUICE_KILL_POINT
"$kill_build/tests/test_ring_rewind" >ring.err 2>&1 || fail 'test_ring_rewind with kill points'
grep 'died at' ring.err

# ---- random instants ----

# Kills of loaders at random times until the run ends or `left` are done. The coordinator gives up after five
# deaths without an image in between, by design: so not more than three without one. Prints kills and the
# longest time, in ms, from a kill to a successor that is past its start, as seen by sluice status.
cat >storm.awk <<'AWK'
function now(   t, cmd) { cmd = "date +%s%3N"; cmd | getline t; close(cmd); return t }
BEGIN {
    srand(seed)
    cmd = sluice " status " pid " 2>/dev/null"
    while (kills < left && misses < 100) {
        system("sleep " (0.01 + 0.09 * rand()))
        n = lines = 0
        while ((cmd | getline) > 0) {
            lines++
            if ($1 !~ /^loader-/ || $2 !~ /^[0-9]+$/) continue
            made = match($0, /[0-9]+ images/) ? substr($0, RSTART, RLENGTH) + 0 : 0
            if (made > 0) barren[$1] = 0
            if (seen_pid[$1] == $2 && made > seen_made[$1]) fresh = 0
            if (($1 in killed) && $2 != dead[$1] && $0 !~ /start/) {
                took = now() - killed[$1]
                if (took > longest) longest = took
                delete killed[$1]
            }
            seen_pid[$1] = $2; seen_made[$1] = made
            if (!($1 in killed) || $2 != dead[$1]) if (barren[$1] < 3) { name[n] = $1; victim[n++] = $2 }
        }
        close(cmd)
        if (lines == 0) { misses++; if (system("kill -0 " pid " 2>/dev/null")) break; continue }
        misses = 0
        if (n == 0 || fresh >= 3) continue
        i = int(rand() * n)
        if (system("kill -KILL " victim[i] " 2>/dev/null")) continue
        if (!(name[i] in killed)) killed[name[i]] = now()
        dead[name[i]] = victim[i]; barren[name[i]]++; fresh++; kills++
    }
    print kills + 0, longest + 0
}
AWK
seed=${SEED:-$(($(date +%s) % 100000))}
left=${KILLS:-200}
echo "seed $seed"
runs=0 total=0 longest=0
while [ "$left" -gt 0 ]; do
    digest stormy $storm
    until_true 60 "$sluice" status "$pid" >/dev/null 2>&1 || fail 'storm: no run within 60 s'
    set -- $(awk -v sluice="$sluice" -v pid="$pid" -v seed=$((seed + runs)) -v left="$left" -f storm.awk)
    ended "storm, seed $seed"
    [ $rc -eq 0 ] || fail "storm: exit status $rc after $1 kills, seed $seed"
    cmp -s storm.out stormy.out || fail "storm: other batches after $1 kills, seed $seed"
    left=$((left - $1)) total=$((total + $1)) runs=$((runs + 1))
    [ "$total" -gt 0 ] || [ $runs -lt 5 ] || fail "storm: no loader was caught alive, seed $seed"
    [ "$2" -le "$longest" ] || longest=$2
    nothing_left storm
done
echo "$total loaders killed at random instants of $runs runs; longest recovery $longest ms"
echo "test_kill_points: passed: $count points, $(($(date +%s) - began)) s"
