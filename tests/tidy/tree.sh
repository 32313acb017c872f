#!/usr/bin/env bash
# tree.sh ROOT: what a machine can check of the tree: top level, include arrows, lengths, banned
# calls, where each library may be named. Prints every offence; exit status 1 when there is one.
set -uo pipefail
cd "$1" || exit 2
bad=0

offence() {
    printf '%s\n' "$*"
    bad=1
}

# sources [FOLDERS]: our own C files.
sources() {
    find "$@" \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cc' -o -name '*.def' \) -not -path '*/refs/*'
}

# forbid PATTERN REASON FILES...
forbid() {
    local pattern=$1 reason=$2 hits
    shift 2
    [ $# -gt 0 ] || return 0
    hits=$(grep -nE "$pattern" "$@" /dev/null)
    [ -z "$hits" ] || offence "$reason:"$'\n'"$hits"
}

mapfile -t base < <(sources ckpt/base)
mapfile -t meta < <(sources ckpt/meta)
mapfile -t ckpt < <(sources ckpt -maxdepth 1)
mapfile -t train < <(sources train)
mapfile -t recover < <(sources recover)
mapfile -t backup < <(sources backup)
mapfile -t own < <(sources ckpt train recover backup)
mapfile -t all < <(sources ckpt train recover backup tests)

for entry in * .[!.]*; do
    case $entry in
    train | ckpt | recover | backup | tests | CMakeLists.txt | README.md | .* | build*) ;;
    *) offence "top level holds '$entry'" ;;
    esac
done

# Arrows: ckpt/base <- ckpt/meta <- ckpt <- train; recover and backup see base and meta only.
forbid '#include "(ckpt/(meta/|[^b/][^/]*")|train/|recover/|backup/|tests/)' 'base includes upwards' "${base[@]}"
forbid '#include "(ckpt/[^/]*"|train/|recover/|backup/|tests/)' 'meta includes upwards' "${meta[@]}"
forbid '#include "(train/|recover/|backup/|tests/)' 'ckpt includes upwards' "${ckpt[@]}"
forbid '#include "(recover/|backup/|tests/)' 'train includes sideways' "${train[@]}"
forbid '#include "(ckpt/[^/]*"|train/|backup/|tests/)' 'recover sees more than base and meta' "${recover[@]}"
forbid '#include "(ckpt/[^/]*"|train/|recover/|tests/)' 'backup sees more than base and meta' "${backup[@]}"
forbid '#include "[^/"]*"' 'an include that is not written from the root' "${all[@]}"

# One home for each library.
only_in() {
    local pattern=$1 home=$2 hits
    hits=$(grep -nE "$pattern" "${own[@]}" /dev/null | grep -vE "^($home)")
    [ -z "$hits" ] || offence "outside $home:"$'\n'"$hits"
}
only_in '#include <hdf5' 'ckpt/shard'
only_in '#include <zstd' 'ckpt/codec\.'
only_in '#include <(oneapi|dnnl)' 'train/device/cpu_'
only_in '#include <(cuda|cublas|nccl)' 'train/device/.*\.cu:'
only_in '#include <xxh' 'ckpt/base/hash\.'
only_in '#include <yaml' 'train/config_file\.'
only_in '#include <pcre2' 'train/data/'
only_in '#include <sentencepiece' 'train/data/sentencepiece_model\.cc:'
only_in '#include <curl' 'backup/s3_http\.'
only_in '#include <expat' 'backup/s3_xml\.'
only_in '#include <openssl' 'backup/s3_sign\.'

# Lengths.
long=$(wc -l "${all[@]}" | awk '$2 != "total" && $1 > 800')
[ -z "$long" ] || offence "files of more than 800 lines:"$'\n'"$long"
long=$(grep -nE '^.{101,}$' "${all[@]}" /dev/null)
[ -z "$long" ] || offence "lines of more than 100 columns:"$'\n'"$long"

# Calls that have a safer sister, and exits outside of main files.
forbid '\<(strcpy|strcat|sprintf|vsprintf|gets|atoi|atol|atof|strtok|system|tmpnam|alloca)\(' \
    'banned calls' "${own[@]}"
hits=$(grep -nE '(^|[^_a-z])(exit|_exit)\(' "${own[@]}" /dev/null |
    grep -vE '^([^:]*_main\.c|recover/launcher\.c):')
[ -z "$hits" ] || offence "only a main file exits:"$'\n'"$hits"
forbid '\<(TODO|FIXME|XXX)\>' 'left open' "${all[@]}"

# A file's head says what it is for.
headless=$(awk 'FNR == 1 && !/^\/\*/ && FILENAME !~ /\.def$/ { print FILENAME }' "${all[@]}")
[ -z "$headless" ] || offence "files that do not begin with what they are for:"$'\n'"$headless"
exit "$bad"
