#!/bin/sh
# The batch stream is a function of data, seed and options alone: not of the number of loaders, of how many
# ranks share the batch, or of loaders that die in the middle.
set -u
sluice=${SLUICE_BIN:-build/bin}/sluice
work=$(mktemp -d "${TMPDIR:-/tmp}/sluice-digest.XXXXXX") || exit 1
pid=
trap '[ -n "$pid" ] && kill -KILL "$pid" 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
cd "$work" || exit 1
export XDG_RUNTIME_DIR="$work"

fail() {
    echo "test_digest: $*"
    for log in "$work"/*.err; do echo "--- $log" && tail -n 15 "$log"; done
    exit 1
}

# digest NAME ARGUMENTS..: leaves NAME.out, and its last line in $stream.
digest() {
    name=$1
    shift
    timeout 200 "$sluice" digest "$@" >"$name.out" 2>"$name.err" </dev/null || fail "$name: exit status $?"
    stream=$(tail -n 1 "$name.out")
    case $stream in 'stream '????????????????) ;; *) fail "$name: the last line is '$stream'" ;; esac
}

# same_stream DATA ARGUMENTS..: over loaders and ranks.
same_stream() {
    data=$1
    shift
    digest first data="$data" device=cpu workers=1 "$@"
    want=$stream
    for workers in 2 5; do
        digest "w$workers" data="$data" device=cpu workers=$workers "$@"
        cmp -s first.out "w$workers.out" || fail "$data: workers=$workers gives other batches"
    done
    for workers in 1 3; do
        digest "r$workers" data="$data" device=cpu,cpu workers=$workers "$@"
        [ "$stream" = "$want" ] || fail "$data: two ranks with workers=$workers give '$stream', not '$want'"
    done
    cmp -s r1.out r3.out || fail "$data: two ranks: workers=3 gives other batches"
}

"$sluice" sample out=sample images=40 imgsz=320 seed=3 >sample.err 2>&1 || fail 'sluice sample'
# 32 training images in batches of 12: the last one wraps. Mosaic stays on.
same_stream sample/data.yaml imgsz=160 batch=12 epochs=2 close_mosaic=0 seed=5
# The stream leaves the wrap out, so the batch size does not matter either.
digest batch data=sample/data.yaml device=cpu workers=2 imgsz=160 batch=8 epochs=2 close_mosaic=0 seed=5
[ "$stream" = "$want" ] || fail "another batch size gives '$stream', not '$want'"
digest seed data=sample/data.yaml device=cpu workers=2 imgsz=160 batch=12 epochs=2 close_mosaic=0 seed=6
[ "$stream" != "$want" ] || fail 'another seed gives the same stream'

# Columns: epoch step rank digest [samples], validation marked.
digest columns data=sample/data.yaml device=cpu,cpu workers=2 imgsz=160 batch=12 epochs=1 --samples
awk '$1 == "stream" || $1 == "epoch" { next }
    { v = $1 == "val"; n = split($(5 + v), ids, ","); lines++ }
    NF != 5 + v || $(1 + v) != 0 || $(3 + v) > 1 || length($(4 + v)) != 16 { bad = 1 }
    !v && n != 6 { bad = 1 }
    !v { train += n }
    v { val += n }
    END { exit bad || train != 36 || val != 8 }' columns.out || fail "columns: $(cat columns.out)"

# Loaders that are killed one after the other leave the stream as it is.
options='data=sample/data.yaml device=cpu imgsz=640 batch=8 epochs=4 close_mosaic=0'
digest alive $options workers=2
# A run may be over before it could be met: it is begun again.
twelve='1 2 3 4 5 6 7 8 9 10 11 12'
for try in $twelve; do
    "$sluice" digest $options workers=2 >killed.out 2>killed.err </dev/null &
    pid=$!
    kills=0
    while kill -0 $pid 2>/dev/null && [ $kills -lt 5 ]; do
        sleep 0.1
        child=$("$sluice" status $pid 2>/dev/null | awk '$1 ~ /^loader-/ { print $2; exit }')
        [ -n "$child" ] && kill -KILL "$child" 2>/dev/null && kills=$((kills + 1))
    done
    wait $pid
    rc=$?
    pid=
    [ $rc -eq 0 ] || fail "killed: exit status $rc"
    cmp -s alive.out killed.out || fail "$kills killed loaders changed the batches"
    [ $kills -eq 0 ] || break
done
[ $kills -ge 1 ] || fail 'killed: no loader was caught alive'

# So do loaders that come and go by command.
for try in $twelve; do
    "$sluice" digest $options workers=1 >scaled.out 2>scaled.err </dev/null &
    pid=$!
    scales=0 refused=0
    for n in 4 1 3 2; do
        sleep 0.3
        "$sluice" scale $pid workers=$n >scale.err 2>&1 && scales=$((scales + 1))
        "$sluice" checkpoint $pid >checkpoint.err 2>&1 && fail 'a digest says that it wrote a checkpoint'
        grep -q 'this is a sluice digest, which trains nothing' checkpoint.err && refused=$((refused + 1))
    done
    wait $pid || fail "scaled: exit status $?"
    pid=
    cmp -s alive.out scaled.out || fail 'another number of loaders on the way changed the batches'
    [ $refused -eq 0 ] || [ $scales -eq 0 ] || break
done
[ $refused -ge 1 ] || fail "a checkpoint of a digest: $(cat checkpoint.err)"
[ $scales -ge 1 ] || fail 'scaled: the run was never reached'

# Files that were there for the scan and are gone when the loaders come: each loader meets them at a moment
# of its own, and the stream is the same. Images of two sizes, neighbours in the list among those that go. A
# program of the loader's name, in a folder of its own, takes the files away before it becomes the loader.
"$sluice" sample out=small images=40 imgsz=128 seed=4 >small.err 2>&1 || fail 'sluice sample'
mkdir -p mixed kept bin
for kind in images labels; do
    for split in train val; do
        mkdir -p mixed/$kind/$split
        for file in sample/$kind/$split/*; do cp "$file" mixed/$kind/$split/; done
        for file in small/$kind/$split/*; do cp "$file" "mixed/$kind/$split/small_$(basename "$file")"; done
    done
done
cp sample/data.yaml mixed/
ls mixed/images/train/* | sed -n '3p;4p;9p;31p;32p;33p' >victims
ls mixed/images/val/* | sed -n '2p' >>victims
cp $(cat victims) kept/
cp "$sluice" bin/sluice
cat >bin/sluice-loader <<SCRIPT
#!/bin/sh
case " \$* " in *' --scan '*) ;; *) (cd "$work" && rm -f \$(cat victims)) ;; esac
exec "$(dirname "$sluice")/sluice-loader" "\$@"
SCRIPT
chmod +x bin/sluice-loader
whole=$sluice
sluice=$work/bin/sluice
for workers in 1 4; do
    while read -r file; do cp "kept/$(basename "$file")" "$file"; done <victims
    digest "gone$workers" data=mixed/data.yaml device=cpu workers=$workers imgsz=160 batch=8 epochs=3 close_mosaic=0 \
        degrees=30 scale=0.9 mixup=0.3 --samples
    [ "$(grep -c 'another image is used' "gone$workers.err")" -eq 7 ] || fail "gone: not each of 7 files is told once"
done
sluice=$whole
cmp -s gone1.out gone4.out || fail 'gone: four loaders give other batches than one'

if [ -n "${SLUICE_TEST_DATA:-}" ] && [ -f "$SLUICE_TEST_DATA/deeppcb/data.yaml" ]; then
    same_stream "$SLUICE_TEST_DATA/deeppcb/data.yaml" imgsz=160 batch=16 epochs=1 close_mosaic=0 fraction=0.2
fi
echo 'test_digest: passed'
