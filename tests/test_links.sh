#!/bin/sh
# The loader links no CUDA or collective library, the trainers no image library (design 2); of all programs
# sluice-trainer-cuda alone links CUDA, and it is there in a build with CUDA alone.
set -u
bin=${SLUICE_BIN:-build/bin}
bad=0

# links PROGRAM WHAT PATTERN: fails when a library of PROGRAM, at any depth, matches.
refuse() {
    list=$(ldd "$bin/$1") || { echo "$bin/$1 cannot be looked at"; exit 1; }
    echo "$list" | grep -q 'libc\.so' || { echo "$1: ldd shows no C library:"; echo "$list"; exit 1; }
    if echo "$list" | grep -E "$3"; then
        echo "$1 links $2"
        bad=1
    fi
}

cuda='libcuda|libcudart|libnccl|libcublas|libcudnn|libnvrtc'
refuse sluice-loader 'a CUDA or BLAS library' "$cuda|openblas"
refuse sluice-trainer 'a CUDA or image library' "$cuda|libjpeg|libturbojpeg|libpng"
refuse sluice-scribe 'a CUDA or image library' "$cuda|libjpeg|libpng"
# The command computes on the CPU (val, predict) and starts trainers; it never touches a GPU.
refuse sluice 'a CUDA library' "$cuda"
# The patterns must be able to fail: the loader does decode, and the trainer for GPUs uses CUDA.
ldd "$bin/sluice-loader" | grep -q libjpeg || { echo 'the loader links no libjpeg: is this the loader?'; bad=1; }
said=${SLUICE_BUILD:-build}/cuda.txt
if [ -e "$said" ] && ! grep -q 'not built' "$said"; then
    refuse sluice-trainer-cuda 'an image library' 'libjpeg|libturbojpeg|libpng'
    for library in libcudart libcudnn libnccl; do
        ldd "$bin/sluice-trainer-cuda" | grep -q "$library\.so" || { echo "sluice-trainer-cuda links no $library"; bad=1; }
    done
elif [ -e "$said" ] && [ -e "$bin/sluice-trainer-cuda" ]; then
    echo 'a build without CUDA has a sluice-trainer-cuda'
    bad=1
fi
exit $bad
