#!/bin/sh
# YOLO11m at 2048 px, batch 8, on images of about 2800 px: runs, and what the device holds at its fullest is within 3 %
# of what was planned and said before the first step.
set -u
data=${SLUICE_TEST_DATA:-}/bsdata_hi
[ -f "$data/data.yaml" ] || {
    echo 'no bsdata_hi data: SLUICE_TEST_DATA'
    exit 77
}
work=$(mktemp -d "${TMPDIR:-/tmp}/sluice-gpu.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
export XDG_RUNTIME_DIR="$work" XDG_CACHE_HOME="${XDG_CACHE_HOME:-$work/cache}"
before=$(nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -i 0)
timeout 200 "$SLUICE_BIN/sluice" train data="$data/data.yaml" model=yolo11m imgsz=2048 batch=8 epochs="${EPOCHS:-3}" \
    device=0 project="$work" name=large </dev/null >"$work/out" 2>&1 &
pid=$!
most=0
while kill -0 $pid 2>/dev/null; do
    used=$(nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -i 0)
    [ "$used" -gt "$most" ] && most=$used
    sleep 0.3
done
wait $pid
rc=$?
cat "$work/out"
[ $rc -eq 0 ] || exit 1
grep -h 'waited for data\|measuring took' "$work"/large/logs/*
awk -v most=$((most - before)) '
/^  rank 0 +gpu .*: needs .* free$/ { for (i = 1; i < NF; i++) if ($i == "needs") { need = $(i + 1); unit = $(i + 2) } }
END {
    mib = need * (unit ~ /^GB/ ? 953.674 : unit ~ /^GiB/ ? 1024 : unit ~ /^MB/ ? 0.953674 : 1)
    off = mib > 0 ? (most - mib) / mib : 9
    printf "peak %d MiB, planned %d MiB: %+.1f %%\n", most, mib, 100 * off
    exit !(off < 0.03 && off > -0.03)
}' "$work/out"
