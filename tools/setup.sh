#!/bin/sh
# Finds what the build needs and gets what is missing: from apt where one may install, else unpacked into
# .deps/ of this folder without root, else it names what to ask the administrator for. Says nothing when
# all is there. --ci adds what .ci/run needs. Shown on Debian 12; other systems are untested.
set -u
cd "$(dirname "$0")/.." || exit 4
deps=$PWD/.deps
ci=no
[ "${1:-}" = --ci ] && ci=yes
work=$(mktemp -d) || exit 4
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

say() { printf 'setup: %s\n' "$*" >&2; }

# What is needed: name, Debian packages, RHEL packages.
packages() {
    cat <<'LIST'
compiler gcc,binutils,libc6-dev gcc,binutils,glibc-devel
liburing liburing-dev liburing-devel
zeromq libzmq3-dev zeromq-devel
jpeg libjpeg-dev libjpeg-turbo-devel
yaml libyaml-dev libyaml-devel
png libpng-dev libpng-devel
openblas libopenblas-pthread-dev openblas-devel
cmocka libcmocka-dev libcmocka-devel
djpeg libjpeg-turbo-progs libjpeg-turbo-utils
LIST
    [ $ci = no ] || echo 'clang-format clang-format clang-tools-extra'
}

# A program that uses one library: includes, a call, what to link.
source_of() {
    case $1 in
    compiler) inc='stdio.h math.h' call='puts("")' lib='-lm' ;;
    liburing) inc='liburing.h' call='io_uring_queue_init(0, 0, 0)' lib=-luring ;;
    zeromq) inc='zmq.h' call='zmq_ctx_new()' lib=-lzmq ;;
    jpeg) inc='stdio.h jpeglib.h' call='jpeg_crop_scanline(0, 0, 0)' lib=-ljpeg ;;
    yaml) inc='yaml.h' call='yaml_get_version_string()' lib=-lyaml ;;
    png) inc='png.h' call='png_access_version_number()' lib=-lpng ;;
    openblas) inc='cblas.h' call='openblas_set_num_threads(1)' lib=-lopenblas ;;
    cmocka) inc='stdarg.h stddef.h stdint.h setjmp.h cmocka.h' call='skip()' lib=-lcmocka ;;
    esac
}

compiler=${CC:-gcc}
cflags='' ldflags=''
if [ -f "$deps/deps.mk" ]; then
    compiler=${CC:-$(sed -n 's/^DEPS_CC := //p' "$deps/deps.mk")}
    compiler=${compiler:-gcc}
    cflags=$(sed -n 's/^DEPS_CFLAGS := //p' "$deps/deps.mk")
    ldflags=$(sed -n 's/^DEPS_LDFLAGS := //p' "$deps/deps.mk")
fi

# Compiles and links the use of every library named, as one program.
compiles() {
    libs='' calls=''
    : >"$work/probe.c"
    for name; do
        source_of "$name"
        for h in $inc; do echo "#include <$h>"; done >>"$work/probe.c"
        calls="$calls (void)($call);" libs="$libs $lib"
    done
    echo "int main(void) { $calls return 0; }" >>"$work/probe.c"
    eval "$compiler -D_GNU_SOURCE -w $cflags -o '$work/probe' '$work/probe.c' $ldflags $libs" \
        >"$work/log" 2>&1
}

# clang-format 14 is asked for by its major version: others lay out the same code differently.
has_tool() {
    case $1 in
    djpeg) command -v djpeg || [ -x "$deps/bin/djpeg" ] ;;
    clang-format) command -v clang-format-14 || clang-format --version | grep 'version 14\.' ||
        [ -x "$deps/bin/clang-format" ] ;;
    esac >/dev/null 2>&1
}

libraries='compiler liburing zeromq jpeg yaml png openblas cmocka'
tools=djpeg
[ $ci = no ] || tools='djpeg clang-format'

# Names what is missing, in $missing; quick when nothing is.
find_missing() {
    missing=''
    if ! compiles $libraries; then
        for l in $libraries; do
            compiles "$l" && continue
            # RHEL keeps OpenBLAS's header in a folder of its own.
            if [ "$l" = openblas ] && [ -f /usr/include/openblas/cblas.h ]; then
                cflags="$cflags -I/usr/include/openblas"
                compiles "$l" && mkdir -p "$deps" && write_deps "${CC:-}" && continue
            fi
            missing="$missing $l"
            # Without a compiler no library can be tried, so that each would look missing.
            [ "$l" = compiler ] && missing=" $libraries" && break
        done
    fi
    for t in $tools; do has_tool "$t" || missing="$missing $t"; done
    [ -z "$missing" ]
}

write_deps() {
    {
        echo '# Written by tools/setup.sh; remove .deps/ to start afresh.'
        [ -z "$1" ] || echo "DEPS_CC := $1"
        [ -z "${2:-}" ] || echo "DEPS_AR := $2"
        echo "DEPS_CFLAGS := $cflags"
        echo "DEPS_LDFLAGS := $ldflags"
    } >"$deps/deps.mk.new" && mv "$deps/deps.mk.new" "$deps/deps.mk"
}

# Packages for what is missing: column 2 (Debian) or 3 (RHEL).
wanted() {
    for m in $missing; do packages | awk -v n="$m" -v c="$1" '$1 == n { gsub(",", " ", $c); print $c }'; done |
        tr '\n' ' '
}

# With root, or with sudo that asks for no password.
install_system() {
    sudo=''
    if [ "$(id -u)" != 0 ]; then
        sudo -n true 2>/dev/null || return 1
        sudo='sudo -n'
    fi
    command -v apt-get >/dev/null || return 1
    say "installing with apt: $(wanted 2)"
    apt="$sudo env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120"
    # The lists may be missing or old: once more after an update.
    $apt install --no-install-recommends $(wanted 2) >"$work/apt" 2>&1 && return 0
    $apt update >"$work/apt" 2>&1
    $apt install --no-install-recommends $(wanted 2) >>"$work/apt" 2>&1 && return 0
    say 'apt could not install them:'
    tail -n 5 "$work/apt" >&2
    return 1
}

# Links in -dev packages name files of packages that are installed, or stand elsewhere in the prefix.
mend_links() {
    find "$deps/root" -type l -name '*.so*' | while read -r link; do
        [ -e "$link" ] && case $(readlink "$link") in /*) false ;; *) true ;; esac && continue
        base=$(basename "$(readlink "$link")")
        for dir in "$deps/root/usr/lib/$triple" "$deps/root/lib/$triple" "/usr/lib/$triple" "/lib/$triple"; do
            [ -e "$dir/$base" ] && ln -sf "$dir/$base" "$link" && break
        done
    done
}

# Programs out of the prefix, each through a script that tells it where its libraries are. The compiler
# finds its own parts from where it stands; the C library's it is told.
write_programs() {
    mkdir -p "$deps/bin"
    [ ! -f "$deps/root/usr/lib/$triple/libc.so" ] ||
        sed -i "s# /usr/lib/$triple/# $deps/root/usr/lib/$triple/#g" "$deps/root/usr/lib/$triple/libc.so"
    for tool in gcc ar djpeg clang-format; do
        real=$(ls "$deps/root/usr/bin/$tool" "$deps/root/usr/bin/$triple-$tool" 2>/dev/null | head -n 1)
        [ -n "$real" ] || continue
        flags=''
        [ $tool = gcc ] && flags="-B$deps/root/usr/lib/$triple/ -B$deps/root/usr/bin/"
        cat >"$deps/bin/$tool" <<SCRIPT
#!/bin/sh
LD_LIBRARY_PATH=$deps/root/usr/lib/$triple:$deps/root/lib/$triple\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}
PATH=$deps/root/usr/bin:\$PATH
export LD_LIBRARY_PATH PATH
exec $real $flags "\$@"
SCRIPT
        chmod +x "$deps/bin/$tool"
    done
}

# Without root: apt with lists and archives of our own, unpacked with dpkg, nothing installed.
install_prefix() {
    command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 1
    case $deps in *[\'\"\\\$:#%]* | *' '*)
        say "the folder $PWD has a space or a sign in its name that a compiler's flags cannot carry"
        return 1
        ;;
    esac
    say "no root here: unpacking into .deps/: $(wanted 2)"
    mkdir -p "$deps/apt/lists/partial" "$deps/apt/archives/partial" "$deps/root" || return 1
    apt="apt-get -q -y -o Dir::State::lists=$deps/apt/lists -o Dir::Cache=$deps/apt
        -o Dir::Cache::archives=$deps/apt/archives -o Debug::NoLocking=1 -o APT::Sandbox::User="
    $apt update >"$work/apt" 2>&1
    if ! $apt install --download-only --no-install-recommends $(wanted 2) >>"$work/apt" 2>&1; then
        say 'apt could not fetch them:'
        tail -n 5 "$work/apt" >&2
        rm -rf "$deps/apt" "$deps/root"
        return 1
    fi
    for deb in "$deps"/apt/archives/*.deb; do
        dpkg -x "$deb" "$deps/root" || return 1
    done
    rm -rf "$deps/apt"
    triple=$(basename "$(ls -d "$deps"/root/usr/lib/*-linux-gnu* | head -n 1)")
    mend_links
    cflags="-idirafter $deps/root/usr/include -idirafter $deps/root/usr/include/$triple"
    ldflags='-Wl,--disable-new-dtags' # so that libraries of libraries are found too
    for blas in "$deps/root/usr/include/$triple"/openblas-*; do
        [ -d "$blas" ] && cflags="$cflags -idirafter $blas"
    done
    for dir in "$deps/root/usr/lib/$triple" "$deps/root/lib/$triple" "$deps/root/usr/lib/$triple"/openblas-*; do
        [ -d "$dir" ] && ldflags="$ldflags -L$dir -Wl,-rpath,$dir"
    done
    write_programs
    case " $missing " in
    *' compiler '*)
        compiler=$deps/bin/gcc
        write_deps "$deps/bin/gcc" "$deps/bin/ar"
        ;;
    *) write_deps '' ;;
    esac
}

# A GPU without what kernels/cuda is built from is worth a line; trainings then use the CPU.
if [ -e /dev/nvidiactl ] && [ "${CUDA:-1}" != 0 ]; then
    cuda=$(MAKEFLAGS='' make -s cuda 2>/dev/null | grep 'not built') && say "there is a GPU, but $cuda"
fi
find_missing && exit 0
install_system && find_missing && exit 0
[ "$(id -u)" = 0 ] || { install_prefix && find_missing && exit 0; }

say "missing:$missing. Ask the administrator for:"
say "  Debian or Ubuntu: apt-get install $(wanted 2)"
say "  RHEL (zeromq and cmocka come from EPEL): dnf install $(wanted 3)"
exit 4
