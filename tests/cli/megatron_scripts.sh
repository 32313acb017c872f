#!/usr/bin/env bash
# megatron_scripts.sh BIN REFS: the example scripts of Megatron-LM, with nothing but the launch line
# changed. As they are: every argument is resolved to Megatron's value and printed in its format.
# With sizes that fit here: they train, validate and save.
set -uo pipefail
PATH=$1:$PATH
refs=$2
home=$(mktemp -d "${TMPDIR:-/tmp}/holdfast scripts.XXXXXX")
export TMPDIR=$home
trap 'rm -rf "$home"' EXIT
cd "$home" || exit 2
failures=0

fail() {
    printf 'FAILED: %s\n' "$1"
    cat out.txt
    failures=$((failures + 1))
}

ln -s "$refs/gpt2_tokenizer/encoder.json" vocab.json
ln -s "$refs/gpt2_tokenizer/vocab.bpe" merges.txt
mkdir logs

# flags NAME: the words of a script into `flags`. All of them ask for --fp16, which is left to the
# tests of mixed precision where the trainer has none.
left_out=
holdfast train --help | grep -q -- '--fp16 ' || left_out=--fp16
flags() {
    local line
    flags=()
    while read -r line; do
        # shellcheck disable=SC2206 # the words of a line are split at its blanks
        [ "$line" = "$left_out" ] || flags+=($line)
    done <"$refs/megatron_scripts/$1.flags"
}

# resolved NAME RANKS: the first rank's block of arguments, all lines of the golden one in it and in
# their order. Nothing is read before it is printed; then the data are missing.
resolved() {
    local block
    flags "$1"
    mkdir -p meet
    timeout -s KILL 60 env RANK=0 WORLD_SIZE="$2" LOCAL_WORLD_SIZE=8 HOLDFAST_RUN_DIR="$home/meet" \
        holdfast train "${flags[@]}" >out.txt 2>&1
    [ $? = 1 ] || fail "$1: not stopped by the missing data"
    grep -q "looked for 'DATA.idx' and 'DATA.bin'" out.txt || fail "$1: no word of the missing data"
    block=$(sed -n '/^-* arguments -*$/,/^-* end of arguments -*$/p' out.txt)
    grep -Fxf "$refs/megatron_scripts/$1.arguments" <<<"$block" >found.txt
    diff "$refs/megatron_scripts/$1.arguments" found.txt >diff.txt ||
        fail "$1: other arguments: $(cat diff.txt)"
    sed '1d;$d' <<<"$block" | LC_ALL=C sort -c || fail "$1: not sorted"
}
resolved gpt3_175b 1024
resolved gpt3_175b_samples 1024
resolved gpt_with_mp 8
resolved gpt_distributed 8
resolved gpt2_with_mp 8

# trained NAME RANKS SIZES...: with the data and the last word on sizes, from the beginning to a
# validation and a test after the training, with a checkpoint.
for ((i = 0; i < 200; i++)); do
    echo "{\"text\": \"line $i of a text that is read again and again\"}"
done >text.jsonl
holdfast preprocess --input text.jsonl --output-prefix made --append-eod --vocab-file vocab.json \
    --merge-file merges.txt 2>/dev/null || exit 2
mv made_text_document.idx DATA.idx && mv made_text_document.bin DATA.bin
small=(--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16
    --max-position-embeddings 16)
trained() {
    local name=$1 ranks=$2
    shift 2
    flags "$name"
    rm -rf CHECKPOINT
    timeout -s KILL 120 holdfast run --nproc_per_node "$ranks" -- train "${flags[@]}" \
        "${small[@]}" "$@" >out.txt 2>&1 || fail "$name: exit code $?"
    grep -q 'validation loss at iteration 3 |' out.txt || fail "$name: no validation"
    grep -q 'on validation set |' out.txt || fail "$name: no validation at the end"
    [ -d CHECKPOINT/step_0000006 ] || fail "$name: no checkpoint"
    ! grep -q 'warning' out.txt || fail "$name: a warning"
}
steps=(--train-iters 6 --lr-decay-iters 5 --eval-interval 3 --eval-iters 1)
trained gpt3_175b 4 "${steps[@]}" --global-batch-size 16 --rampup-batch-size 4 4 24 \
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2
trained gpt3_175b_samples 4 --train-samples 64 --lr-decay-samples 60 --lr-warmup-samples 10 \
    --eval-interval 3 --eval-iters 1 --global-batch-size 16 --rampup-batch-size 4 4 24 \
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2
trained gpt_with_mp 4 "${steps[@]}"
trained gpt_distributed 2 "${steps[@]}"
trained gpt2_with_mp 4 "${steps[@]}"
exit $((failures > 0))
