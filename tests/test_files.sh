#!/bin/sh
# Files that are damaged, go bad after the scan, or go away all together: what a run does with them does not
# depend on the number of loaders or ranks, everything is told and counted once, and lists of it can be had
# afterwards.
set -u
bin=${SLUICE_BIN:-build/bin}
work=$(mktemp -d "${TMPDIR:-/tmp}/sluice-files.XXXXXX") || exit 1
pid=
trap '[ -n "$pid" ] && kill -KILL "$pid" 2>/dev/null; chmod -R u+rwX "$work"; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
cd "$work" || exit 1
export XDG_RUNTIME_DIR="$work"

fail() {
    echo "test_files: $*"
    for log in "$work"/*.err "$work"/*.out; do echo "--- $log" && tail -n 12 "$log"; done
    exit 1
}

# A program of the loader's name, in a folder of its own, that runs ./spoil once before the first loader starts:
# behind the scan, and behind nothing else.
mkdir own
cp "$bin/sluice" own/
for program in sluice-trainer sluice-scribe; do ln -s "$bin/$program" own/; done
cat >own/sluice-loader <<SCRIPT
#!/bin/sh
case " \$* " in *' --scan '*) ;; *) mkdir "$work/spoiled" 2>/dev/null && (cd "$work" && . ./spoil) && : >"$work/spoiled/done" ;; esac
case " \$* " in *' --scan '*) ;; *) n=0 && until [ -e "$work/spoiled/done" ] || [ \$((n += 1)) -gt 3000 ]; do sleep 0.01; done ;; esac
exec "$bin/sluice-loader" "\$@"
SCRIPT
chmod +x own/sluice-loader
sluice=$work/own/sluice

# fresh: the data set as it was, and files will be spoiled anew.
fresh() {
    chmod -R u+rwX data 2>/dev/null
    rm -rf data spoiled
    cp -r kept data
}

# digest NAME WORDS..: NAME.dig has the digests, $stream the last line.
digest() {
    name=$1
    shift
    timeout 200 "$sluice" digest data=data/data.yaml imgsz=96 batch=8 epochs=2 close_mosaic=0 seed=1 "$@" \
        >"$name.dig" 2>"$name.err" </dev/null || fail "$name: exit status $?"
    stream=$(tail -n 1 "$name.dig")
}

# same_for_all NAME WORDS..: the same stream for 1, 2 and 5 loaders and for two ranks.
same_for_all() {
    what=$1 want=
    shift
    for workers in 1 2 5; do
        fresh
        digest "$what-$workers" device=cpu workers=$workers "$@"
        [ "$stream" = "${want:=$stream}" ] || fail "$what: workers=$workers gives '$stream', not '$want'"
    done
    fresh
    digest "$what-ranks" device=cpu,cpu workers=3 "$@"
    [ "$stream" = "$want" ] || fail "$what: two ranks give '$stream', not '$want'"
}

: >spoil
"$sluice" sample out=kept images=80 imgsz=128 seed=5 >sample.out 2>&1 || fail 'sluice sample'
fresh
digest whole device=cpu workers=2
whole=$stream

# ---- gone bad after the scan: every way, each named once with its reason ----

image() { printf 'data/images/%s/plate_%05d.jpg' "$1" "$2"; }
set -- $(ls kept/images/train | sed -n '3p;4p;5p;20p;21p;40p;60p')
cat >spoil <<SPOIL
cd data/images/train
rm $1
truncate -s 100 $2
echo more >>$3
head -c \$(wc -c <$4) /dev/zero >$4.new && mv $4.new $4
rm $5 && mkdir $5
rm $6 && mkfifo $6
rm $7 && ln -s $7 $7
cd ../val
set -- *.jpg
rm \$1 && ln -s /proc/self/mem \$1 # opens, and reading it is an input/output error
SPOIL
reasons='No such file|ends after 100 of|has grown|neither a JPEG nor|Is a directory|not a file any more|Too many levels|Input/output error'
same_for_all bad
[ "$stream" != "$whole" ] || fail 'bad: the stream is as if nothing had been replaced'
bad=$stream
fresh
digest bad-threads device=cpu workers=3 io=threads
[ "$stream" = "$bad" ] || fail "bad: with io=threads '$stream', not '$bad'"
for n in 1 2 5 ranks threads; do
    got=$(grep 'bad sample: ' bad-$n.err | grep -Eoc "$reasons")
    [ "$got" -eq 8 ] && [ "$(grep -c 'another image is used' bad-$n.err)" -eq 8 ] ||
        fail "bad: not each of 8 files is told once with its reason: $(cat bad-$n.err)"
    grep -q '^8 bad samples' bad-$n.err || fail 'bad: they are not counted'
done
if [ "$(id -u)" -ne 0 ]; then
    echo "chmod 0 data/images/train/$1" >spoil
    fresh
    digest denied device=cpu workers=2
    grep -q 'bad sample: .*Permission denied' denied.err || fail 'denied: not told'
fi

# ---- damaged after the scan: both policies ----

victims=$(ls kept/images/train | sed -n '7p;8p;9p;30p;50p')
cat >spoil <<SPOIL
cd data/images/train
for file in $(echo $victims); do
    printf '\377\320\377\321\377\322\377\323' | dd of=\$file bs=1 seek=\$((\$(wc -c <\$file) / 2)) conv=notrunc 2>/dev/null
done
SPOIL
same_for_all damaged on_warning=use
used=$stream
grep -q '^0 bad samples, 5 images used although' damaged-5.err || fail "damaged: $(cat damaged-5.err)"
[ "$(grep -c 'it is used (on_warning=skip would not)' damaged-5.err)" -eq 5 ] || fail 'damaged: not each file is told once'
same_for_all skipped on_warning=skip
grep -q '^5 bad samples, 0 images' skipped-5.err || fail "skipped: $(cat skipped-5.err)"
[ "$stream" != "$used" ] && [ "$stream" != "$whole" ] && [ "$used" != "$whole" ] || fail 'the policies do not differ'

# In training: an event each, the totals in status, at the end, and in the list of files.
fresh
"$sluice" train data=data/data.yaml model=yolo11n imgsz=64 batch=8 nbs=8 epochs=2 workers=3 device=cpu,cpu \
    project="$work/runs" name=damaged >train.out 2>&1 </dev/null || fail "train: exit status $?"
[ "$(grep -c '"event":"decoder-warning"' runs/damaged/events.jsonl)" -eq 5 ] || fail 'train: not an event for each file'
[ "$(grep '"event":"decoder-warning"' runs/damaged/events.jsonl | grep -c '"split":"train","found":"training"')" -eq 5 ] ||
    fail 'train: the events do not say where'
grep -q '0 left out, 0 bad in training, 5 used although their decoder warns' train.out || fail 'train: no totals at the end'
"$sluice" files runs/damaged >files.out || fail 'files: exit status'
for file in $victims; do
    [ "$(grep -c "^warning   .*/$file: decodes with" files.out)" -eq 1 ] || fail "files: $file is not listed once"
done
"$sluice" files runs/damaged --json | grep -c '^{"time".*"event":"decoder-warning"' | grep -qx 5 || fail 'files --json'
"$sluice" files nosuch >nosuch.out 2>&1 && fail 'files: finds a run that is not there'

# ---- files that decode with a warning from the beginning ----

: >spoil
if [ -d "${SLUICE_TEST_DATA:-/nonexistent}/odd/warn" ]; then
    mv kept plain
    cp -r plain kept
    cp "$SLUICE_TEST_DATA"/odd/warn/* kept/images/train/
    chmod -R u+rwX kept
    same_for_all warn on_warning=use
    # four of sixteen are smaller than an image may be
    grep -q '4 left out, 12 used although' warn-1.err && grep -q '^0 bad samples, 12 images used' warn-1.err ||
        fail "warn: $(cat warn-1.err)"
    [ "$stream" != "$whole" ] || fail 'warn: they are not used'
    # A run so short may be over before a loader was caught alive.
    for try in 1 2 3 4 5 6 7 8 9 10 11 12; do
        fresh
        "$sluice" digest data=data/data.yaml imgsz=96 batch=8 epochs=2 close_mosaic=0 seed=1 device=cpu workers=2 \
            on_warning=use >killed.dig 2>killed.err </dev/null &
        pid=$! kills=0
        while kill -0 $pid 2>/dev/null && [ $kills -lt 3 ]; do
            sleep 0.05
            child=$("$sluice" status $pid 2>/dev/null | awk '$1 ~ /^loader-/ { print $2; exit }')
            [ -n "$child" ] && kill -KILL "$child" 2>/dev/null && kills=$((kills + 1))
        done
        wait $pid || fail "killed: exit status $?"
        pid=
        [ "$(tail -n 1 killed.dig)" = "$stream" ] || fail "warn: $kills kills change the stream"
        [ $kills -eq 0 ] || break
    done
    [ $kills -ge 1 ] || fail "killed: no loader was caught alive"
    same_for_all warn-skip on_warning=skip
    [ "$stream" = "$whole" ] || fail 'warn: what is skipped is seen'
    rm -rf kept && mv plain kept
fi

# ---- too many ----

cat >spoil <<SPOIL
cd data/images/train
for file in \$(ls | head -n 12); do truncate -s 100 \$file; done
SPOIL
fresh
timeout 200 "$sluice" digest data=data/data.yaml imgsz=96 batch=8 device=cpu workers=2 >many.dig 2>many.err </dev/null
[ $? -eq 3 ] || fail 'many: it is no unusable data set'
grep '^sluice: ' many.err | grep -q 'of 64 training images could be read when the run began' || fail "many: $(cat many.err)"

# ---- all at once ----

: >spoil
fresh
timeout 300 "$sluice" train data=data/data.yaml model=yolo11n imgsz=64 batch=8 nbs=8 epochs=500 patience=0 workers=3 \
    device=cpu digest=True close_mosaic=0 project="$work/runs" name=gone >gone.out 2>&1 </dev/null &
pid=$!
tries=0
until grep -q '"event":"epoch"' runs/gone/events.jsonl 2>/dev/null; do
    tries=$((tries + 1))
    [ $tries -lt 2400 ] && kill -0 $pid 2>/dev/null || fail 'gone: no epoch'
    sleep 0.05
done
mv data/images elsewhere
wait $pid
got=$?
pid=
[ $got -eq 3 ] || fail "gone: exit status $got instead of 3"
grep '^sluice: ' gone.out | grep -q 'the storage of the .* images has gone: .* others tried at random .*resume=' ||
    fail "gone: $(tail -n 3 gone.out)"
grep -q '"event":"storage-gone"' runs/gone/events.jsonl || fail 'gone: no event'
grep -q '"event":"bad-sample"' runs/gone/events.jsonl && fail 'gone: a file is blamed'
mv elsewhere data/images
epochs() { grep -c '"event":"epoch"' runs/gone/events.jsonl; }
before=$(epochs)
timeout 300 "$sluice" train resume=runs/gone >resumed.out 2>&1 </dev/null &
pid=$!
tries=0
until [ "$(epochs)" -gt "$before" ]; do
    tries=$((tries + 1))
    [ $tries -lt 2400 ] && kill -0 $pid 2>/dev/null || fail 'gone: the resume has no epoch'
    sleep 0.05
done
kill -INT $pid
wait $pid
got=$?
pid=
[ $got -eq 5 ] || fail "resumed: exit status $got instead of 5"
timeout 200 "$sluice" digest data=data/data.yaml imgsz=64 batch=8 epochs=$((before + 1)) close_mosaic=0 device=cpu workers=2 \
    >stream.dig 2>stream.err || fail 'gone: digest'
sed -n 's/.*"event":"epoch","epoch":\([0-9]*\),.*"stream":"\([0-9a-f]*\)".*/\1 \2/p' runs/gone/events.jsonl |
    awk '{ print $1 - 1, $2 }' | head -n $((before + 1)) >got.txt
awk '$1 == "epoch" { print $2, $3 }' stream.dig | cmp -s - got.txt || fail 'gone: the resumed run sees other batches'
echo 'test_files: passed'
