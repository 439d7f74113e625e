#!/bin/sh
# A run whose files go bad while it is on is resumed without them: RUN/samples.catalog keeps their places and
# the ledger says what is read instead, so that it is the same run whether they have come back by then or not.
# What else has changed in the data set, or in that file, is refused in a sentence that names it.
set -u
bin=${SLUICE_BIN:-build/bin}
sluice=$bin/sluice
work=$(mktemp -d "${TMPDIR:-/tmp}/sluice-list.XXXXXX") || exit 1
pid=
trap '[ -n "$pid" ] && kill -KILL "$pid" 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
cd "$work" || exit 1
export XDG_RUNTIME_DIR="$work"

fail() {
    echo "test_resume_list: $*"
    for log in "$work"/*.out; do echo "--- $log" && tail -n 15 "$log"; done
    exit 1
}

events() { cat runs/first/events.jsonl 2>/dev/null | grep -c "\"event\":\"$1\""; }

# until_events NAME COUNT: the run has told so many; 1: it has ended before.
until_events() {
    tries=0
    until [ "$(events "$1")" -ge "$2" ]; do
        tries=$((tries + 1))
        [ $tries -lt 1200 ] && kill -0 "$pid" 2>/dev/null || return 1
        sleep 0.05
    done
}

# resume NAME ARGUMENTS..: a copy of the stopped run, to its end; $got is its exit status.
resume() {
    name=$1
    shift
    timeout 300 "$sluice" train resume="$work/runs/$name" "$@" >"$name.out" 2>&1 </dev/null
    got=$?
}

# refused NAME STATUS TEXT: in one sentence.
refused() {
    resume "$1"
    [ $got -eq "$2" ] || fail "$1: exit status $got instead of $2"
    [ "$(grep -c '^sluice: ' "$1.out")" -eq 1 ] && grep '^sluice: ' "$1.out" | grep -q "$3" || fail "$1: not '$3'"
}

# What is behind a safetensors file's header: the numbers.
numbers() {
    n=$(od -An -tu8 -N8 "$1" | tr -d ' ')
    tail -c "+$((n + 9))" "$1"
}

streams() { sed -n 's/.*"event":"epoch","epoch":\([0-9]*\),.*"stream":"\([0-9a-f]*\)".*/\1 \2/p' "runs/$1/events.jsonl"; }

"$sluice" sample out=data images=40 imgsz=128 seed=3 >sample.out 2>&1 || fail 'sluice sample'
echo 'no image yet' >data/images/train/zz_later.jpg
cp -r data kept

# ---- four files go bad while it trains, every way they can; then it is stopped ----

restore() {
    rm -rf data
    cp -r kept data
}
set -- $(ls data/images/train | sed -n '3p;9p;20p')
spoil() {
    rm data/images/train/"$1"
    truncate -s $(($(wc -c <data/images/train/"$2") / 2)) data/images/train/"$2"
    head -c "$(wc -c <data/images/train/"$3")" /dev/zero >zeros && cp zeros data/images/train/"$3"
    rm data/images/val/"$(ls kept/images/val | head -n 1)"
}
# One that came to its end before all that is begun again.
for try in 1 2 3 4 5 6 7 8; do
    restore
    rm -rf runs/first
    env --default-signal=INT "$sluice" train data=data/data.yaml model=yolo11n imgsz=64 batch=4 nbs=8 workers=2 \
        epochs=12 optimizer=AdamW lr0=0.002 patience=50 device=cpu digest=True project="$work/runs" name=first \
        >first.out 2>&1 </dev/null &
    pid=$!
    if until_events epoch 1; then
        [ -s runs/first/samples.catalog ] || fail 'the list is not kept'
        spoil "$@"
        until_events bad-sample 4 && until_events epoch $(($(events epoch) + 1))
        kill -TERM $pid 2>/dev/null
    fi
    wait $pid
    got=$?
    pid=
    [ $got -eq 0 ] || break
done
[ $got -eq 5 ] || fail "first: exit status $got instead of 5"
[ "$(events bad-sample)" -ge 4 ] || fail "first: $(events bad-sample) bad samples, not 4"
for copy in missing restored label damaged cut old empty gone; do cp -r runs/first runs/$copy; done

# ---- resumed without them, and with them: the same run ----

resume missing
[ $got -eq 0 ] || fail "missing: exit status $got"
grep -q "4 images of the run's list cannot be used now: they keep their places" missing.out || fail 'missing: it is not said'
for file in "$@"; do grep -q "keeps its place, and cannot be used: .*/$file: " missing.out || fail "missing: $file is not named"; done
"$sluice" files runs/missing | grep -c '^kept  ' | grep -qx 4 || fail 'missing: sluice files does not list them'
restore
"$sluice" sample out=other images=4 imgsz=128 seed=9 >>sample.out 2>&1
cp other/images/train/"$(ls other/images/train | head -n 1)" data/images/train/zz_later.jpg
resume restored
[ $got -eq 0 ] || fail "restored: exit status $got"
grep -q "left out: .*/zz_later.jpg: stays out of this run's list" restored.out || fail 'restored: what stays out is not named'
grep -q 'keeps its place' restored.out && fail 'restored: something is missing'
[ "$(streams missing | wc -l)" -eq 12 ] || fail "missing: not each epoch: $(streams missing)"
[ "$(streams missing)" = "$(streams restored)" ] || fail 'the batches depend on whether the files are back'
for file in last last.state best; do
    numbers runs/missing/weights/$file.safetensors >a.numbers
    numbers runs/restored/weights/$file.safetensors | cmp -s - a.numbers || fail "other numbers in $file.safetensors"
done
cmp -s runs/missing/samples.catalog runs/first/samples.catalog || fail 'the list that is kept changes'

# ---- what is refused ----

echo '0 0.5 0.5 0.1 0.1' >>"data/labels/train/$(basename "$2" .jpg).txt"
refused label 2 "1 image is not as when the run began, the first: .*/$2: its labels have changed"
restore
dd if=/dev/zero of=runs/damaged/samples.catalog bs=1 seek=700 count=9 conv=notrunc 2>/dev/null
refused damaged 2 'damaged/samples.catalog is damaged (.*): remove it and resume again'
truncate -s 1000 runs/cut/samples.catalog
refused cut 2 'cut/samples.catalog is damaged'
: >runs/cut/samples.catalog
refused cut 2 'cut/samples.catalog is empty: it is damaged'
rm data/images/train/*
refused empty 3 'training images cannot be read now, the first: .*storage'
mv data/images data/elsewhere
refused gone 3 "the run's list has .* images; are they, and what names them, there"

# ---- a run that was begun without such a file: as it was ----

restore
rm runs/old/samples.catalog "data/images/train/$1"
refused old 2 'was trained on sample list'
restore
resume old epochs=12
[ $got -eq 0 ] || fail "old: exit status $got"
cmp -s runs/old/samples.catalog runs/first/samples.catalog || fail 'old: it has no list now'
[ "$(streams old)" = "$(streams missing)" ] || fail 'old: other batches'
echo 'test_resume_list: passed'
