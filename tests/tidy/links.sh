#!/usr/bin/env bash
# links.sh BIN: recover and backup run on hosts without HDF5, zstd, oneDNN or CUDA, so they must not
# be linked to them; and only backup speaks to S3. (What libcurl brings along is its own affair, so
# of backup only its own links count.)
set -uo pipefail
bad=0
for program in holdfast holdfast-recover holdfast-backup; do
    libraries=$(readelf -d "$1/$program" | grep NEEDED) || exit 2
    forbidden='hdf5|zstd|dnnl|cuda|nccl|gomp|pcre|sentencepiece|yaml'
    [ "$program" = holdfast-backup ] || forbidden+='|curl|crypto|ssl|expat'
    hits=$(grep -E "$forbidden" <<<"$libraries")
    if [ -n "$hits" ]; then
        printf '%s is linked to:\n%s\n' "$program" "$hits"
        bad=1
    fi
done
exit "$bad"
