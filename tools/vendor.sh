#!/bin/sh
# Fills a folder with what sluice is built from and runs on beside the C library and CUDA, for a machine that can
# install nothing: make vendor here, copy the folder with the sources, make VENDOR=folder there. The packages are this
# machine's distribution's (Debian or Ubuntu), fetched and unpacked without installing; they work on a later
# distribution, whose C library is newer. No root needed.
#   tools/vendor.sh [FOLDER]     default: vendor
set -eu
cd "$(dirname "$0")/.."
folder=${1:-vendor}
say() { printf 'vendor: %s\n' "$*" >&2; }
for tool in apt-get apt-cache dpkg; do
    command -v $tool >/dev/null || {
        say "$tool is missing: this needs Debian or Ubuntu"
        exit 4
    }
done
wanted='liburing-dev libzmq3-dev libjpeg-dev libyaml-dev libpng-dev libopenblas-pthread-dev libcmocka-dev libjpeg-turbo-progs'
# What every machine with a compiler has, and what only installing or other programs need.
base='^(libc6|libc6-dev|libc-dev-bin|linux-libc-dev|libgcc-s1|libstdc\+\+6|gcc-[0-9]*-base|libcrypt1|libcrypt-dev|libnsl.*|libtirpc.*|rpcsvc-proto|debconf.*|dpkg|perl.*|tar|libssl3.*|krb5-locales|cdebconf|install-info|libselinux1|libpcre2.*|libacl1|libbz2.*|liblzma5|libzstd1|libdebian.*|libdpkg.*|libdb5.*|libgdbm.*|libicu.*|icu-.*|libxml2.*|libkrb5-dev|krb5-multidev|libgssrpc.*|libkadm5.*|libkdb5.*|comerr-dev)$'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Every package that the wanted ones need, at any depth; of alternatives the first.
packages=$(apt-cache depends --recurse --important --no-pre-depends $wanted | grep -E '^[a-z0-9]' | sort -u | grep -Ev "$base")
[ -n "$packages" ] || {
    say 'apt knows none of the packages; apt-get update, then again'
    exit 4
}
say "fetching $(echo "$packages" | wc -l) packages"
(cd "$work" && apt-get -q -o APT::Sandbox::User= download $packages >log 2>&1) || {
    tail -n 5 "$work/log" >&2
    say 'apt could not fetch them; apt-get update, then again'
    exit 4
}
rm -rf "$folder"
mkdir -p "$folder"
for deb in "$work"/*.deb; do dpkg -x "$deb" "$folder"; done
# Headers, shared libraries and djpeg are used; the rest is most of the size.
rm -rf "$folder/usr/share" "$folder/usr/sbin" "$folder/etc" "$folder/var"
find "$folder" \( -name '*.a' -o -name '*.la' -o -name '*.cmake' \) -delete
find "$folder/usr/bin" -type f ! -name djpeg -delete 2>/dev/null || true
# Links to places of an installed system lead to the same name here, or nowhere and go.
find "$folder" -type l | while read -r link; do
    [ -e "$link" ] && case $(readlink "$link") in /*) false ;; *) true ;; esac && continue
    found=$(find "$folder" -name "$(basename "$(readlink "$link")")" ! -path "$link" | head -n 1)
    rm -f "$link"
    [ -z "$found" ] || ln -s "$(realpath --relative-to="$(dirname "$link")" "$found")" "$link"
done
mkdir -p "$folder/bin"
cat >"$folder/bin/djpeg" <<'SCRIPT'
#!/bin/sh
root=$(cd "$(dirname "$0")/.." && pwd)
for dir in "$root"/usr/lib/*-linux-gnu "$root"/lib/*-linux-gnu; do
    LD_LIBRARY_PATH=$dir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
done
export LD_LIBRARY_PATH
exec "$root/usr/bin/djpeg" "$@"
SCRIPT
chmod +x "$folder/bin/djpeg"
say "$folder: $(du -sh "$folder" | cut -f 1); build with make VENDOR=$folder"
