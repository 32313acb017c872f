#!/usr/bin/env bash
# links.sh BIN: recover and backup run on hosts without HDF5, zstd, oneDNN or CUDA, so they must not
# be linked to them.
set -uo pipefail
bad=0
for program in holdfast holdfast-recover holdfast-backup; do
    libraries=$(ldd "$1/$program") || exit 2
    hits=$(grep -E 'hdf5|zstd|dnnl|cuda|nccl|gomp|pcre' <<<"$libraries")
    if [ -n "$hits" ]; then
        printf '%s is linked to:\n%s\n' "$program" "$hits"
        bad=1
    fi
done
exit "$bad"
