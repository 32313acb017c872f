#!/usr/bin/env bash
# ckpt_export.sh ROOT BIN: exported models, read by the safetensors library, and, where they are, by
# torch and transformers (tests/refs/check_export.py: names, weights, logits, loss).
#
# $HOLDFAST_TEST_PYTHON is a Python with safetensors and numpy; without it the test is skipped.
set -uo pipefail
refs=$1/tests/refs
PATH=$2:$PATH
python=${HOLDFAST_TEST_PYTHON:-}
if [ -z "$python" ] || ! "$python" -c 'import safetensors.numpy' 2>/dev/null; then
    echo 'SKIP: HOLDFAST_TEST_PYTHON names no Python with safetensors and numpy'
    exit 77
fi
home=$(mktemp -d "${TMPDIR:-/tmp}/holdfast export.XXXXXX")
trap 'rm -rf "$home"' EXIT
cd "$home" || exit 2

for name in a a500; do
    holdfast ckpt import "$refs/hf_gpt2/$name" --save "save-$name" >/dev/null &&
        holdfast ckpt export "save-$name" --to "$name" || exit 1
    "$python" - "$name/model.safetensors" "$refs/hf_gpt2/$name/model.safetensors" <<'PYTHON' || exit 1
import sys
from safetensors import safe_open
from safetensors.numpy import load_file

ours, theirs = (load_file(path) for path in sys.argv[1:])
assert set(ours) == set(theirs), set(ours) ^ set(theirs)
for name in ours:
    assert ours[name].shape == theirs[name].shape and ours[name].dtype == theirs[name].dtype, name
    assert ours[name].tobytes() == theirs[name].tobytes(), name
with safe_open(sys.argv[1], "np") as file:
    assert file.metadata() == {"format": "pt"}, file.metadata()
print(len(ours), "tensors, bit for bit")
PYTHON
done
if ! "$python" -c 'import torch, transformers' 2>/dev/null; then
    echo 'not tried: torch and transformers are not there'
    exit 0
fi
for name in a a500; do
    "$python" "$refs/check_export.py" "$name" "$refs/hf_gpt2/$name" || exit 1
done
