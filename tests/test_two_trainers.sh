#!/bin/sh
# A folder of programs without sluice-trainer-cuda, and one whose sluice-trainer-cuda finds a library missing: the CPU
# trains, device=auto says why, device=0 is refused with that reason. Needs neither a GPU nor a build with CUDA.
set -u
bin=${SLUICE_BIN:-build/bin}
bin=$(cd "$bin" && pwd) || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
fail() {
    echo "FAIL: $*"
    for f in "$work"/*.out; do [ -e "$f" ] && { echo "-- $f"; tail -n 20 "$f"; }; done
    exit 1
}
# The command looks beside itself, links followed.
mkdir own && cp "$bin/sluice" own/ && ln -s "$bin/sluice-loader" "$bin/sluice-trainer" "$bin/sluice-scribe" own/ || exit 1
timeout 60 own/sluice sample out=sample images=24 imgsz=128 >sample.out 2>&1 || fail 'the sample'

# check NAME STATUS PATTERN COMMAND..: its exit status, and what it says.
check() {
    name=$1 want=$2 pattern=$3
    shift 3
    timeout 100 own/sluice "$@" >"$name.out" 2>&1 </dev/null
    got=$?
    [ $got = "$want" ] || fail "$name: exit status $got, not $want"
    grep -Eq "$pattern" "$name.out" || fail "$name does not say: $pattern"
}
train='train data=sample/data.yaml model=yolo11n imgsz=64 batch=8 epochs=1 workers=1 close_mosaic=0 project=runs'
bench='bench step model=yolo11n batch=1 imgsz=32 nc=1 boxes=1 steps=1 warmup=1'

# all NAME WHY: the same of any reason.
all() {
    check "$1.devices" 4 "^sluice: no GPU: $2" devices
    check "$1.auto" 0 "^device=auto: the CPU, for there is no GPU to use: $2" $train name="$1.auto" device=auto
    check "$1.zero" 4 "device=0: no usable GPU was found \($2" $train name="$1.zero" device=0
    check "$1.cpu" 0 '' $train name="$1.cpu" device=cpu
    grep -E "$2" "$1.cpu.out" && fail "$1.cpu speaks of GPUs"
    check "$1.bench" 0 "device=auto: the CPU, for there is no GPU to use: $2" $bench device=auto
    check "$1.bench.zero" 4 "$2" $bench device=0
}
all alone 'this build has no CUDA'
# A library that is nowhere, in place of one that both trainers have.
LC_ALL=C sed 's/libzmq\.so/libnot\.so/' <"$bin/sluice-trainer" >own/sluice-trainer-cuda && chmod +x own/sluice-trainer-cuda
all unloaded '[^ ]*own/sluice-trainer-cuda: error while loading shared libraries: libnot\.so'
# One that cannot be executed at all.
chmod -x own/sluice-trainer-cuda
all denied '.*did not start: exec [^ ]*own/sluice-trainer-cuda: Permission denied'
echo passed
