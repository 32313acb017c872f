#!/usr/bin/env bash
# data_flags.sh BIN REFS: blends and the index cache through `holdfast run`: the same training with a
# cache and without, from whoever fills it, over a damaged one, and in another layout.
set -uo pipefail
PATH=$1:$PATH
refs=$2
home=$(mktemp -d "${TMPDIR:-/tmp}/holdfast data.XXXXXX")
export TMPDIR=$home
trap 'rm -rf "$home"' EXIT
cp "$2"/megatron_data/{text_eod,u16_multi}.* "$home" && cd "$home" || exit 2
failures=0
model=(--num-layers 2 --hidden-size 32 --num-attention-heads 2 --seq-length 64
    --max-position-embeddings 64 --vocab-size 65536 --micro-batch-size 1 --global-batch-size 4
    --lr 1e-3 --train-iters 3 --log-interval 1 --num-threads 1)
blend=(--data-path 0.7 text_eod 0.3 u16_multi --split 90,8,2)

fail() {
    printf 'FAILED: %s\n' "$1"
    cat out.txt
    failures=$((failures + 1))
}

# losses RANKS FLAGS...: the loss of each of STEPS steps, alone in losses.txt.
STEPS=3
losses() {
    local ranks=$1
    shift
    timeout -s KILL 60 holdfast run --nproc-per-node "$ranks" -- train "${model[@]}" "$@" \
        >out.txt 2>&1 || fail "$*: exit code $?"
    grep -o 'lm loss: [^|]*' out.txt >losses.txt
    [ "$(wc -l <losses.txt)" = "$STEPS" ] || fail "$*: not $STEPS steps"
}
same() {
    cmp -s "$1" losses.txt || fail "$2: other losses"
}
files() {
    [ "$(find cache -type f | wc -l)" = "$1" ] || fail "$(find cache) instead of $1 files"
}

losses 1 "${blend[@]}" --num-workers 0
cp losses.txt wanted.txt
losses 2 "${blend[@]}" --num-workers 5 --global-batch-size 4 --micro-batch-size 2
same wanted.txt 'samples read ahead'
losses 2 "${blend[@]}" --data-cache-path cache
same wanted.txt 'two ranks that fill a cache'
files 14
! grep -q warning out.txt || fail 'a warning'
losses 2 "${blend[@]}" --data-cache-path cache --pipeline-model-parallel-size 2
same wanted.txt 'two ranks that use a cache'
files 14

# A resume with other ranks goes on with the next sample, whatever was read ahead.
save=(--save save --load save --save-interval 2)
STEPS=2 losses 1 "${blend[@]}" "${save[@]}" --exit-interval 2 --data-cache-path cache
mv losses.txt begun.txt
STEPS=1 losses 2 "${blend[@]}" "${save[@]}" --micro-batch-size 2
cat begun.txt losses.txt >all.txt && mv all.txt losses.txt
same wanted.txt 'a resume with two ranks'

# Another order, in each epoch anew, whoever reads ahead; it is tied to DP and the micro-batch.
cyclic=("${blend[@]}" --dataloader-type cyclic --micro-batch-size 2)
losses 2 "${cyclic[@]}" --num-workers 0
cp losses.txt cyclic.txt
! cmp -s wanted.txt losses.txt || fail 'cyclic is no other order'
losses 2 "${cyclic[@]}" --num-workers 3
same cyclic.txt 'cyclic, read ahead'
losses 4 "${cyclic[@]}" --pipeline-model-parallel-size 2
same cyclic.txt 'cyclic with two stages'
losses 2 "${cyclic[@]}" --no-data-sharding
! cmp -s cyclic.txt losses.txt || fail 'data sharding changes nothing'
save=(--save turns --load turns --save-interval 2)
STEPS=2 losses 2 "${cyclic[@]}" "${save[@]}" --exit-interval 2
mv losses.txt begun.txt
for other in '--micro-batch-size 1' '--tensor-model-parallel-size 2'; do
    # shellcheck disable=SC2086 # two words
    timeout -s KILL 60 holdfast run --nproc-per-node 2 -- train "${model[@]}" "${cyclic[@]}" \
        "${save[@]}" $other >out.txt 2>&1
    [ $? = 14 ] || fail "cyclic with $other: not refused"
    grep -q 'cyclic would give samples of .* twice' out.txt || fail "cyclic with $other: no reason"
done
STEPS=1 losses 2 "${cyclic[@]}" "${save[@]}"
cat begun.txt losses.txt >all.txt && mv all.txt losses.txt
same cyclic.txt 'a resume of cyclic'

for file in cache/*sample_index.npy; do
    truncate -s 200 "$file"
done
losses 2 "${blend[@]}" --data-cache-path cache
same wanted.txt 'a cache of half files'
grep -q 'a kept index is made anew' out.txt || fail 'no word of the half files'
losses 2 "${blend[@]}" --data-cache-path cache
! grep -q warning out.txt || fail 'the half files are still there'

: >file
losses 2 "${blend[@]}" --data-cache-path file/cache
same wanted.txt 'a cache that cannot be made'
grep -q "not kept in 'file/cache'" out.txt || fail 'no word of the cache that cannot be made'

# The blend as one word, in a file, and a path for each split.
losses 1 --data-path '0.7 text_eod 0.3 u16_multi' --split 90,8,2
same wanted.txt 'a blend in one word'
printf '0.7 text_eod\n0.3\tu16_multi\n' >blend.txt
losses 1 --data-args-path blend.txt --split 90,8,2
same wanted.txt 'a blend in a file'
losses 1 --train-data-path text_eod --valid-data-path u16_multi --eval-interval 2 --eval-iters 1
cp losses.txt own.txt
grep -q 'validation loss at iteration 2' out.txt || fail 'no validation'
losses 1 --data-path text_eod --split 1,0,0
same own.txt 'the whole of a data set'

# Loss on all but what follows an end of document (50256): alike in every layout, and nothing else.
losses 1 "${blend[@]}" --eod-mask-loss --eod-id 65535
same wanted.txt 'a mask of an id that never comes'
losses 1 "${blend[@]}" --eod-mask-loss --eod-id 50256
! cmp -s wanted.txt losses.txt || fail 'the mask changes nothing'
cp losses.txt masked.txt
losses 2 "${blend[@]}" --eod-mask-loss --eod-id 50256
same masked.txt 'a mask with two data parallel ranks'
losses 2 "${blend[@]}" --eod-mask-loss --eod-id 50256 --pipeline-model-parallel-size 2
same masked.txt 'a mask with two stages'

# The same for positions and attention that begin anew with each document, stages in between
# included.
eod=(--eod-mask-loss --reset-position-ids --reset-attention-mask --eod-id 50256)
losses 1 "${blend[@]}" --reset-position-ids --reset-attention-mask --eod-id 65535
same wanted.txt 'resets at an id that never comes'
losses 1 "${blend[@]}" --num-layers 3 "${eod[@]}"
cp losses.txt reset.txt
losses 3 "${blend[@]}" --num-layers 3 --pipeline-model-parallel-size 3 "${eod[@]}"
same reset.txt 'resets with three stages'
losses 1 "${blend[@]}" --num-layers 3 --eod-mask-loss --eod-id 50256
! cmp -s reset.txt losses.txt || fail 'the resets change nothing'

# The vocabulary of a SentencePiece model: its size, its end of document, and ids beyond it.
sentencepiece=$refs/sentencepiece
pieces=(--vocab-size 0 --tokenizer-type SentencePieceTokenizer --data-path pieces --split 1,0,0
    --tokenizer-model "$sentencepiece/unigram.model")
# vocab_size WANTED FLAGS...: what the training takes it for.
vocab_size() {
    losses 1 "${pieces[@]}" "${@:2}"
    grep -q " vocab_size \.* $1\$" out.txt || fail "$*: another vocabulary"
}
cp "$sentencepiece/unigram.idx" pieces.idx && cp "$sentencepiece/unigram.bin" pieces.bin
vocab_size 500
cp losses.txt pieces.txt
losses 1 "${pieces[@]}" --eod-mask-loss
! cmp -s pieces.txt losses.txt || fail 'the end of document of a model masks nothing'
cp losses.txt masked.txt
losses 1 "${pieces[@]}" --eod-mask-loss --eod-id 2
same masked.txt 'the end of document of a model'
cp "$sentencepiece/unigram_legacy.idx" pieces.idx && cp "$sentencepiece/unigram_legacy.bin" pieces.bin
vocab_size 504 --legacy-tokenizer
holdfast train "${model[@]}" "${pieces[@]}" >out.txt 2>&1 && fail 'ids beyond the vocabulary are taken'
grep -q 'token id 50[0-9] in .* vocabulary of 500' out.txt || fail 'no word of ids beyond the vocabulary'
exit $((failures > 0))
