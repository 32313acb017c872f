#!/usr/bin/env bash
# ckpt_h5py.sh ROOT BIN: checkpoints of the trainer, read by h5py, and by the reader of FORMAT.md.
#
# $HOLDFAST_TEST_PYTHON is a Python with h5py, hdf5plugin and numpy; without it the test is skipped.
set -uo pipefail
root=$1
PATH=$2:$PATH
python=${HOLDFAST_TEST_PYTHON:-}
if [ -z "$python" ] || ! "$python" -c 'import h5py, hdf5plugin, numpy' 2>/dev/null; then
    echo 'SKIP: HOLDFAST_TEST_PYTHON names no Python with h5py, hdf5plugin and numpy'
    exit 77
fi
home=$(mktemp -d "${TMPDIR:-/tmp}/holdfast h5py.XXXXXX")
trap 'rm -rf "$home"' EXIT
cd "$home" || exit 2

# train COMPRESSION RANKS FLAGS...: two steps of the same model into $COMPRESSION.
train() {
    local compression=$1 ranks=$2
    shift 2
    holdfast run --nproc-per-node "$ranks" --run-dir "run-$compression" -- \
        train --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 16 \
        --max-position-embeddings 32 --vocab-size 1031 --mock-data --micro-batch-size 1 \
        --global-batch-size 4 --lr 1e-3 --train-iters 2 --save-interval 2 --log-interval 1 \
        --attention-dropout 0 --hidden-dropout 0 --num-threads 1 \
        --save "$compression" --ckpt-compression "$compression" "$@" >"$compression.log" 2>&1 ||
        { echo "FAILED: no checkpoint '$compression'" && cat "$compression.log" && exit 1; }
}

train none 4 --tensor-model-parallel-size 2
train zstd 4 --tensor-model-parallel-size 2

# The code block of FORMAT.md as a module.
sed -n '/^```python$/,/^```$/{/^```/d;p}' "$root/ckpt/FORMAT.md" >format_reader.py
"$python" format_reader.py zstd/step_0000002 param/decoder.final_layernorm.weight || exit 1

"$python" - <<'PYTHON' || exit 1
import glob, os, subprocess, sys
import numpy as np

# Without the plugin: everything of "none", and the structure of "zstd".
plain = subprocess.run([sys.executable, "-c", """
import glob, h5py
for path in sorted(glob.glob('none/step_0000002/*.h5')):
    with h5py.File(path) as shard:
        count = []
        def read(name, item):
            if isinstance(item, h5py.Dataset):
                count.append(item[...].size)
        shard.visititems(read)
        print(path, len(count), 'datasets', sum(count), 'elements')
        assert len(count) > 10
"""], check=False)
assert plain.returncode == 0, "h5py alone cannot read 'none'"

import h5py, hdf5plugin
import format_reader

compressed = raw = 0
for path in sorted(glob.glob("zstd/step_0000002/*.h5")):
    other = path.replace("zstd/", "none/", 1)
    with h5py.File(path) as shard, h5py.File(other) as twin:
        def compare(name, item):
            global compressed, raw
            if not isinstance(item, h5py.Dataset) or name == "index":
                return
            mate = twin[name]
            assert (item[...].tobytes()) == (mate[...].tobytes()), f"{path} {name} differs"
            assert list(item.attrs["offset"]) == list(mate.attrs["offset"])
            assert list(item.attrs["global_shape"]) == list(mate.attrs["global_shape"])
            plist = item.id.get_create_plist()
            filters = [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]
            assert filters in ([], [2, 32015]), filters
            assert mate.id.get_create_plist().get_nfilters() == 0 and mate.chunks is None
            assert mate.nbytes < 4096 or mate.id.get_offset() % 4096 == 0, f"{other} {name}"
            compressed += filters != []
            raw += filters == []
        shard.visititems(compare)
        assert list(shard.attrs["layout_tp_pp_dp"]) == [2, 1, 2]
        assert f"tp{shard.attrs['coords_tp_pp_dp'][0]:02d}" in path
print(compressed, "compressed datasets,", raw, "raw ones")
assert compressed > 0 and raw > 0

# FORMAT.md's reader gives both the same tensors, and no gaps.
manifest = format_reader.read_manifest("none/step_0000002")
for tensor in manifest["tensors"]:
    a = format_reader.read_tensor("none/step_0000002", tensor["name"])
    b = format_reader.read_tensor("zstd/step_0000002", tensor["name"])
    assert list(a.shape) == tensor["shape"] and a.tobytes() == b.tobytes(), tensor["name"]

# The state hash, by the formula of FORMAT.md, when this Python has xxhash.
try:
    import xxhash
except ImportError:
    print("no xxhash in this Python: the state hash is not computed a second time")
    sys.exit(0)
P = (1 << 61) - 1
total = 0
for tensor in manifest["tensors"]:
    words = format_reader.read_tensor("none/step_0000002", tensor["name"]).ravel().view("<u4")
    z = np.uint64(xxhash.xxh3_64_intdigest(tensor["name"].encode())) + (
        np.arange(1, words.size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    z = (z ^ z >> np.uint64(31)) % np.uint64(P)
    total = (total + sum(int(w) * int(m) for w, m in zip(words, z))) % P
bound = total.to_bytes(8, "little") + manifest["step"].to_bytes(8, "little")
digest = xxhash.xxh3_64_intdigest(bound)
assert f"0x{digest:016x}" == manifest["state_hash"], "the formula gives another state hash"
print("state hash", manifest["state_hash"])
PYTHON

# A reader that checks nothing else still meets zstd's own checksum.
shard=zstd/step_0000002/tp00_pp00_dp00.h5
cp "$shard" damaged.h5
"$python" - <<'PYTHON' || exit 1
import h5py, hdf5plugin
name = "param/embedding.word_embeddings.weight"
with h5py.File("damaged.h5") as shard:
    where = shard[name].id.get_chunk_info(0)
with open("damaged.h5", "r+b") as file:
    file.seek(where.byte_offset + where.size // 2)
    byte = file.read(1)[0]
    file.seek(-1, 1)
    file.write(bytes([byte ^ 16]))
try:
    with h5py.File("damaged.h5") as shard:
        shard[name][...]
except OSError:
    print("a flipped bit is noticed by h5py, too")
else:
    raise SystemExit("FAILED: a flipped bit went unnoticed")
PYTHON
echo 'h5py reads all of it'
