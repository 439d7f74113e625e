#!/bin/sh
# A real training on the GPU, fed by loaders: DeepPCB at 640 px, YOLO11n from scratch, MINUTES (4) long or EPOCHS (60),
# whichever is over first. Prints mAP by epoch, images/s, and how much of the time the trainer waited for data and for
# copies. Fails when the mAP is below what another trainer has after as many epochs (facts: 0.22 after 10 epochs,
# 0.71 after 30, 0.79 after 40), less a tenth for the seed.
set -u
data=${SLUICE_TEST_DATA:-}/deeppcb
[ -f "$data/data.yaml" ] || {
    echo 'no DeepPCB data: SLUICE_TEST_DATA'
    exit 77
}
work=$(mktemp -d "${TMPDIR:-/tmp}/sluice-gpu.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
export XDG_RUNTIME_DIR="$work" XDG_CACHE_HOME="${XDG_CACHE_HOME:-$work/cache}"
began=$(date +%s)
# After MINUTES a Ctrl-C, which a run ends with a checkpoint and status 5. --foreground: one signal, not two.
timeout --foreground --preserve-status -s INT -k 40 $((60 * ${MINUTES:-4})) "$SLUICE_BIN/sluice" train \
    data="$data/data.yaml" model=yolo11n imgsz=640 batch=16 epochs="${EPOCHS:-60}" device=0 \
    ${WORKERS:+workers=$WORKERS} project="$work" name=pcb </dev/null
rc=$?
[ $rc -eq 0 ] || [ $rc -eq 5 ] || {
    tail -n 40 "$work"/pcb/logs/* 2>/dev/null
    echo "exit status $rc"
    exit 1
}
took=$(($(date +%s) - began))
grep -h 'waited for data' "$work"/pcb/logs/*
cut -d , -f 1,2,6-12 "$work/pcb/results.csv" | awk 'NR == 1 || NR % 10 == 1'
[ -n "${KEEP:-}" ] && cp "$work/pcb/results.csv" "$KEEP/deeppcb.csv" && cp "$work/pcb/events.jsonl" "$KEEP/deeppcb.jsonl"
awk -F, -v took=$took '
NR == 1 { for (i = 1; i <= NF; i++) { gsub(/[ \t]/, "", $i); if ($i == "metrics/mAP50(B)") a = i; if ($i == "metrics/mAP50-95(B)") b = i } next }
{ n++; map[n] = $a + 0; if ($b + 0 > best) { best = $b + 0; best50 = $a + 0; at = n } }
END {
    need = n >= 40 ? 0.69 : n >= 30 ? 0.61 : n >= 10 ? 0.12 : 0
    printf "%d epochs in %d s, best mAP50 %.3f, mAP50-95 %.3f after epoch %d (asked: mAP50 %.2f)\n", n, took, best50, best, at, need
    exit !(n > 0 && best50 >= need)
}' "$work/pcb/results.csv"
