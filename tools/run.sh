#!/bin/sh
# `make run`: a made-up inspection data set, then YOLO11n trained on it, with the machine's GPUs or its CPU.
#   tools/run.sh [BUILD] [key=value ...]     the words go to `sluice train`
set -u
cd "$(dirname "$0")/.." || exit 4
build=build
case ${1:-} in '' | *=*) ;; *) build=$1 && shift ;; esac
sluice=$build/bin/sluice
sample=sample

if [ ! -f $sample/data.yaml ]; then
    echo "Writing a made-up inspection data set to $sample/ (240 images of 640 x 640)."
    "$sluice" sample out=$sample images=240 imgsz=640 seed=1 || exit $?
fi
echo 'Training YOLO11n on it at 320 px. The mAP is near 0 for some epochs, then rises.'
echo 'Ctrl-C stops after a checkpoint.'
"$sluice" train data=$sample/data.yaml model=yolo11n imgsz=320 epochs=16 batch=16 nbs=16 \
    optimizer=AdamW lr0=0.002 warmup_epochs=1 "$@"
status=$?
[ $status -eq 0 ] || exit $status
cat <<EOT

This was a made-up data set. To train on yours:
  $sluice train data=YOUR/data.yaml model=yolo11n imgsz=640 epochs=100
  $sluice help train      every option
  $sluice status          what a run is doing, from another terminal
EOT
