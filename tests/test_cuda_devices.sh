#!/bin/sh
# On a machine with a GPU: what `sluice devices` lists, which devices a run takes or refuses, batch=auto, and the
# start table. Skipped without one; test_devices has what needs none.
set -u
bin=${SLUICE_BIN:-build/bin}
bin=$(cd "$bin" && pwd) || exit 1
sluice=$bin/sluice
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
fail() {
    echo "FAIL: $*"
    for f in "$work"/*.out; do [ -e "$f" ] && { echo "-- $f"; tail -n 20 "$f"; }; done
    exit 1
}

timeout 30 "$sluice" devices >"$work/list.out" 2>&1
status=$?
cat "$work/list.out"
grep -q '^sluice: no GPU: ' "$work/list.out" && [ $status = 4 ] && exit 77
[ $status = 0 ] || fail "sluice devices: exit status $status"
grep -Eq '^device=0  .*  [0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.0  [0-9]+\.[0-9]  [0-9.]+ of [0-9.]+ GB free' "$work/list.out" ||
    fail 'the line of device 0'
timeout 30 "$sluice" devices --json >"$work/json.out" 2>&1 || fail 'sluice devices --json'
grep -q '^{"devices":\[{"ordinal":0,' "$work/json.out" || fail 'the JSON line'
gpus=$(grep -c '^device=' "$work/list.out")

# Ordinals are those that CUDA_VISIBLE_DEVICES leaves.
CUDA_VISIBLE_DEVICES='' timeout 30 "$sluice" devices >"$work/hidden.out" 2>&1 && fail 'with nothing visible'
grep -q 'CUDA_VISIBLE_DEVICES is empty' "$work/hidden.out" || fail 'why nothing is visible'
CUDA_VISIBLE_DEVICES=0 timeout 30 "$sluice" devices >"$work/one.out" 2>&1 || fail 'with one visible'
[ "$(grep -c '^device=' "$work/one.out")" = 1 ] || fail 'one visible device'

cd "$work" || exit 1
timeout 60 "$sluice" sample out=sample images=60 imgsz=160 >sample.out 2>&1 || fail 'the sample'

# run NAME STATUS WORDS...: a training whose exit status is known.
run() {
    name=$1 want=$2
    shift 2
    timeout 110 "$sluice" train data=sample/data.yaml model=yolo11n imgsz=96 epochs=1 close_mosaic=0 workers=2 \
        project="$work/runs" name="$name" "$@" >"$name.out" 2>&1 </dev/null
    got=$?
    [ "$got" = "$want" ] || fail "$name: exit status $got, not $want"
}
said() { grep -Eq "$2" "$1.out" || fail "$1 does not say: $2"; }

run absent 4 device=$gpus
said absent "device=$gpus: this machine"
CUDA_VISIBLE_DEVICES='' run hidden2 4 device=0
said hidden2 'no usable GPU was found \(CUDA_VISIBLE_DEVICES is empty'
run uneven 2 device=0,0 batch=7
said uneven 'batch=6 or batch=8'

run first 0 device=0 batch=8
said first '^  rank 0      gpu 0, .*, (bf16|fp16): needs [0-9.]+ [MG]iB of [0-9.]+ [MG]iB free'
run float 0 device=0 batch=8 amp=False
said float '^  rank 0      gpu 0, .*, fp32: needs '
run choice 0 device=auto batch=auto
said choice '^device=auto: GPU [0-9]+ \('
said choice '^batch=auto: [0-9]+ \([0-9.]+ of [0-9.]+ GB on GPU [0-9]'
chosen=$(sed -n 's/^batch=auto: \([0-9]*\) .*/\1/p' choice.out)
grep -qx "batch: $chosen" runs/choice/args.yaml || fail "args.yaml does not have batch: $chosen"
# There are 48 images to train on: a batch of all of them fits, and more is not tried.
[ "$chosen" -ge 24 ] && [ "$chosen" -le 48 ] || fail "batch=auto chose $chosen"
echo "passed: $gpus GPUs, batch=auto took $chosen"
