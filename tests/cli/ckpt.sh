#!/usr/bin/env bash
# ckpt.sh ROOT BIN: list, show, verify, import, export and diff as a user meets them, with good and bad
# input: the documented exit code, and a message that names what is wrong.
set -uo pipefail
refs=$1/tests/refs/hf_gpt2
PATH=$2:$PATH
home=$(mktemp -d "${TMPDIR:-/tmp}/holdfast ckpt.XXXXXX")
trap 'rm -rf "$home"' EXIT
cd "$home" || exit 2
failures=0

fail() {
    printf 'FAILED: %s\n' "$1"
    cat out.txt
    failures=$((failures + 1))
}

# expect CODE TEXT COMMAND...: the exit code, and a text in what it prints ("" any).
expect() {
    local code=$1 text=$2 got
    shift 2
    timeout -s KILL 60 "$@" >out.txt 2>&1
    got=$?
    if [ "$got" != "$code" ] || { [ -n "$text" ] && ! grep -qF -- "$text" out.txt; }; then
        fail "$*: exit code $got, wanted $code and \"$text\""
    fi
}

# flip FILE OFFSET: another byte there.
flip() {
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    printf "\\$(printf %o $((byte ^ 64)))" | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}

# Import, then look at it; a name with a space.
expect 0 'imported 141056 parameters' holdfast ckpt import "$refs/a" --save 'a save'
expect 0 'step_0000000' holdfast ckpt list 'a save'
expect 0 '"type":"checkpoint","step":0' holdfast ckpt list 'a save' --json
expect 0 'param/embedding.word_embeddings.weight' holdfast ckpt show 'a save'
expect 0 '--num-layers                                   FIXED    2' holdfast ckpt show 'a save'
expect 0 '[512, 64]' holdfast ckpt show 'a save/step_0000000'
expect 0 '"manifest_hash"' holdfast ckpt show 'a save' --json --step 0
for level in quick full deep; do
    expect 0 "ok, $level" holdfast ckpt verify 'a save' --level "$level"
    expect 0 '"ok":true' holdfast ckpt verify 'a save/step_0000000' --level "$level" --json
done
cmp -s <(holdfast ckpt show 'a save' --json) 'a save/step_0000000/manifest.json' ||
    fail 'show --json is not the manifest'
expect 1 'there already' holdfast ckpt import "$refs/a500" --save 'a save'
expect 0 'ok, deep' holdfast ckpt verify 'a save' --level deep

# What is not there.
expect 10 'no usable checkpoint' holdfast ckpt show 'a save' --step 7
expect 10 'no checkpoint' holdfast ckpt verify 'a save' --step 7
expect 1 "no folder 'nowhere'" holdfast ckpt list nowhere
expect 1 "no folder 'nowhere'" holdfast ckpt verify nowhere
mkdir empty
expect 0 'no checkpoints' holdfast ckpt list empty
expect 10 '' holdfast ckpt verify empty
expect 10 '' holdfast ckpt show empty

# Wrong words.
expect 2 'usage' holdfast ckpt
expect 0 'verify' holdfast ckpt -h
expect 0 '--level' holdfast ckpt verify -h
expect 2 "'destroy'" holdfast ckpt destroy 'a save'
expect 2 'did you mean' holdfast ckpt list 'a save' --jsn
expect 2 '' holdfast ckpt list
expect 2 '' holdfast ckpt list 'a save' another
expect 2 'quick' holdfast ckpt verify 'a save' --level thorough
expect 2 '' holdfast ckpt verify 'a save' --step many
expect 2 '--save' holdfast ckpt import "$refs/a"

# Damage, in each place that a level looks at.
shard=step_0000000/tp00_pp00_dp00.h5
cp -r 'a save' payload && flip payload/$shard 5000
expect 0 'ok, quick' holdfast ckpt verify payload --level quick
expect 12 'DAMAGED' holdfast ckpt verify payload
expect 12 '"ok":false' holdfast ckpt verify payload --level deep --json
cp -r 'a save' structure && flip structure/$shard 9
expect 12 'DAMAGED' holdfast ckpt verify structure/step_0000000
cp -r 'a save' cut && truncate -s -1 cut/$shard
expect 12 'DAMAGED' holdfast ckpt verify cut --level quick
expect 0 'UNUSABLE' holdfast ckpt list cut
expect 0 '"usable":false' holdfast ckpt list cut --json
expect 10 '' holdfast ckpt show cut
cp -r 'a save' missing && rm missing/$shard
expect 12 'tp00_pp00_dp00.h5' holdfast ckpt verify missing
cp -r 'a save' manifest && flip manifest/step_0000000/manifest.json 300
expect 12 'damaged' holdfast ckpt verify manifest
expect 12 'damaged' holdfast ckpt verify manifest/step_0000000
cp -r 'a save' gone && ln -s nowhere gone/step_0000004 # as if deleted after the scan
expect 0 'ok, full' holdfast ckpt verify gone
expect 0 'not there any more' holdfast ckpt verify gone
expect 10 'no checkpoint' holdfast ckpt verify gone --step 4
cp -r 'a save' mixed && cp -r payload/step_0000000 mixed/step_0000005
expect 12 '' holdfast ckpt verify mixed
expect 0 'ok, full' holdfast ckpt verify mixed --step 0

# Models that cannot be imported leave no checkpoint.
mkdir model && cp "$refs/a/config.json" model
expect 1 'model.safetensors' holdfast ckpt import model --save imported
head -c 100000 "$refs/a/model.safetensors" >model/model.safetensors
expect 12 '' holdfast ckpt import model --save imported
head -c 4 "$refs/a/model.safetensors" >model/model.safetensors
expect 12 'model.safetensors' holdfast ckpt import model --save imported
cp "$refs/a/model.safetensors" model
sed 's/"n_layer": 2/"n_layer": 3/' "$refs/a/config.json" >model/config.json
expect 1 'h.2.ln_1.weight' holdfast ckpt import model --save imported
sed 's/"n_embd": 64/"n_embd": 32/' "$refs/a/config.json" >model/config.json
expect 12 'shape' holdfast ckpt import model --save imported
sed 's/"gelu_new"/"relu"/' "$refs/a/config.json" >model/config.json
expect 1 'activation_function' holdfast ckpt import model --save imported
sed 's/"model_type": "gpt2"/"model_type": "llama"/' "$refs/a/config.json" >model/config.json
expect 1 'llama' holdfast ckpt import model --save imported
echo '{' >model/config.json
expect 12 'config.json' holdfast ckpt import model --save imported
[ ! -e imported/step_0000000 ] || fail 'a refused import left a checkpoint'
: >a-file
expect 1 'a-file' holdfast ckpt import "$refs/a" --save a-file

# Export: of an import, and of a sharded training, which comes back with the same weights.
expect 0 "exported 141056 parameters of 'a save/step_0000000' to 'a model'" \
    holdfast ckpt export 'a save' --to 'a model'
expect 1 "'a model' is there already" holdfast ckpt export 'a save' --to 'a model'
expect 1 "no folder 'nowhere' to put" holdfast ckpt export 'a save' --to nowhere/model
expect 10 'of that step' holdfast ckpt export 'a save' --step 7 --to other
expect 10 '' holdfast ckpt export empty --to other
expect 12 '' holdfast ckpt export payload --to other
expect 2 '--to' holdfast ckpt export 'a save'
[ ! -e other ] || fail 'a refused export left a folder'
expect 0 '' holdfast run --nproc-per-node 4 -- train --num-layers 2 --hidden-size 64 \
    --num-attention-heads 4 --vocab-size 512 --max-position-embeddings 128 --seq-length 16 \
    --mock-data --micro-batch-size 1 --global-batch-size 4 --lr 1e-3 --train-iters 2 \
    --save-interval 2 --num-threads 1 --tensor-model-parallel-size 2 \
    --pipeline-model-parallel-size 2 --load 'a save' --save trained
expect 0 'exported 141056 parameters' holdfast ckpt export trained --step 2 --to model2
grep -q '"attn_pdrop":.*0.1' model2/config.json || fail 'the dropout is not in config.json'
expect 0 'imported 141056 parameters' holdfast ckpt import model2 --save back

# Diff: equal, different, trouble.
expect 0 'imported' holdfast ckpt import 'a model' --save again
expect 0 'are equal: 84 tensors, bit for bit' holdfast ckpt diff 'a save' again
expect 0 '' holdfast ckpt diff 'a save' again --json
expect 1 'setting step' holdfast ckpt diff trained back
grep -q '^tensor  exp_avg/embedding.word_embeddings.weight  *[0-9]* of 32768 differ, at most by' out.txt ||
    fail 'no word of the moments'
! grep -q '^tensor  param/' out.txt || fail 'an exported weight has changed'
expect 1 '"type":"values","name":"param/embedding.word_embeddings.weight","elements":32768,"differing":' \
    holdfast ckpt diff 'a save' trained --json
expect 0 '' holdfast ckpt import "$refs/a500" --save a500
expect 1 'setting vocab-size' holdfast ckpt diff 'a save' a500
grep -q '^tensor  param/embedding.word_embeddings.weight .*\[512, 64\] | f32 *\[500, 64\]' out.txt ||
    fail 'no word of the other shape'
expect 2 "no folder 'nowhere'" holdfast ckpt diff 'a save' nowhere
expect 10 '' holdfast ckpt diff empty 'a save'
expect 12 'is damaged' holdfast ckpt diff 'a save' payload
expect 2 '' holdfast ckpt diff 'a save'
exit $((failures > 0))
