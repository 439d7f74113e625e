#!/bin/sh
# The loader links no CUDA or collective library, the trainer no image library (design 2).
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

refuse sluice-loader 'a CUDA or BLAS library' 'libcuda|libcudart|libnccl|libcublas|libcudnn|openblas'
refuse sluice-trainer 'an image library' 'libjpeg|libturbojpeg|libpng'
refuse sluice-scribe 'a CUDA or image library' 'libcuda|libcudart|libnccl|libjpeg|libpng'
# The pattern must be able to fail: the loader does decode.
ldd "$bin/sluice-loader" | grep -q libjpeg || { echo 'the loader links no libjpeg: is this the loader?'; bad=1; }
exit $bad
