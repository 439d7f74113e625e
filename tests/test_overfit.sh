#!/bin/sh
# The whole command learns: 16 images of the made-up data set, validated on themselves, without augmentation.
# A wrong gradient anywhere between the head and the stem shows here as a mAP that does not rise.
# usage: test_overfit.sh [BUILD], or from tests/run.sh; exit status 0 passed, 1 failed.
set -u
sluice=${SLUICE_BIN:-${1:-build}/bin}/sluice
work=$(mktemp -d "${TMPDIR:-/tmp}/sluice-overfit.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
least=0.3 # 0.42 to 0.68 were seen after 200 updates already

fail() {
    echo "test_overfit: $*" >&2
    tail -n 15 "$work"/*.out >&2
    exit 1
}

"$sluice" sample "out=$work/data" images=20 imgsz=640 seed=3 >"$work/sample.out" 2>&1 || fail "sluice sample"
sed 's#^val:.*#val: images/train#' "$work/data/data.yaml" >"$work/data/self.yaml"
"$sluice" train "data=$work/data/self.yaml" model=yolo11n imgsz=160 epochs=300 batch=16 nbs=16 device=cpu workers=1 \
    optimizer=AdamW lr0=0.001 warmup_epochs=10 val=False mosaic=0 hsv_h=0 hsv_s=0 hsv_v=0 translate=0 scale=0 \
    fliplr=0 "project=$work/runs" >"$work/train.out" 2>&1 </dev/null || fail "sluice train: exit status $?"
map=$(tail -n 1 "$work/runs/train/results.csv" | cut -d, -f8)
echo "mAP50 $map after 300 updates"
awk -v map="$map" -v least=$least 'BEGIN { exit !(map >= least) }' || fail "mAP50 $map, less than $least"
