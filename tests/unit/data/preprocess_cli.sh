#!/usr/bin/env bash
# holdfast preprocess as its users meet it: names, exit codes, one line of error, nothing left.
set -uo pipefail
bin=$HOLDFAST_BIN/holdfast-preprocess
refs=$HOLDFAST_TEST_REFS
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0

claim() {
    if "${@:2}"; then
        echo "PASS $1"
    else
        echo "FAIL $1"
        failed=1
    fi
}

# refuses CODE PART ARGUMENTS...: exits with CODE, says PART in one line, leaves nothing.
refuses() {
    local code=$1 part=$2 output status
    shift 2
    output=$("$bin" --output-prefix "$folder/bad" "$@" 2>&1 >/dev/null)
    status=$?
    [ "$status" = "$code" ] && grep -qF -- "$part" <<<"$output" && [ "$(wc -l <<<"$output")" = 1 ] &&
        ! compgen -G "$folder/bad*" >/dev/null || { echo "exit $status: $output"; return 1; }
}

gpt2=(--tokenizer-type GPT2BPETokenizer --vocab-file "$refs/gpt2_tokenizer/encoder.json"
    --merge-file "$refs/gpt2_tokenizer/vocab.bpe")
bytes=(--tokenizer-type ByteTokenizer)
pieces=(--tokenizer-type SentencePieceTokenizer --tokenizer-model)

makes_megatrons_pair() {
    "$bin" --input "$refs/megatron_data/text.jsonl" --output-prefix "$folder/a" "${gpt2[@]}" \
        --append-eod --workers 2 2>/dev/null &&
        cmp "$folder/a_text_document.bin" "$refs/megatron_data/text_eod.bin" &&
        cmp "$folder/a_text_document.idx" "$refs/megatron_data/text_eod.idx"
}

# makes_pieces NAME FLAGS...: the pair of Python's sentencepiece from the strange texts.
makes_pieces() {
    "$bin" --input "$refs/sentencepiece/tricky.jsonl" --output-prefix "$folder/sp" --append-eod \
        --tokenizer-model "$refs/sentencepiece/${1%%_*}.model" "${@:2}" 2>/dev/null &&
        cmp "$folder/sp_text_document.bin" "$refs/sentencepiece/$1.bin" &&
        cmp "$folder/sp_text_document.idx" "$refs/sentencepiece/$1.idx"
}

# cut_model BYTES NAME: the beginning of a model.
cut_model() {
    head -c "$1" "$refs/sentencepiece/unigram.model" >"$folder/$2"
}

takes_megatrons_spelling_of_keys() {
    echo '{"title": "a", "body": "b"}' >"$folder/keys.jsonl"
    "$bin" --input "$folder/keys.jsonl" --output-prefix "$folder/k" "${bytes[@]}" \
        --json-keys title body 2>/dev/null && [ -s "$folder/k_title_document.bin" ] &&
        [ -s "$folder/k_body_document.idx" ] &&
        "$bin" --input="$folder/keys.jsonl" --output-prefix="$folder/c" "${bytes[@]}" \
            --json-keys title,body 2>/dev/null && cmp "$folder/c_body_document.bin" "$folder/k_body_document.bin"
}

takes_plain_text() {
    printf 'one\n\ntwo\n' >"$folder/plain.txt"
    "$bin" --input "$folder/plain.txt" --output-prefix "$folder/p" "${bytes[@]}" 2>/dev/null &&
        [ "$(cat "$folder/p_text_document.bin" | tr -d '\0')" = onetwo ]
}

# interrupted SIGNAL CODE: sends SIGNAL once the output is begun; exits with CODE, no pair appears.
interrupted() {
    local status=0
    "$bin" --input "$folder/long.jsonl" --output-prefix "$folder/i$1" "${gpt2[@]}" --workers 1 \
        2>/dev/null &
    until compgen -G "$folder/i$1*.idx.*" >/dev/null || ! kill -0 $! 2>/dev/null; do
        sleep 0.01
    done
    kill -s "$1" $!
    wait $! 2>/dev/null || status=$?
    [ "$status" = "$2" ] && [ ! -e "$folder/i$1_text_document.idx" ] &&
        [ ! -e "$folder/i$1_text_document.bin" ]
}

stops_on_a_signal() {
    interrupted TERM 130 && interrupted INT 130 && ! compgen -G "$folder/i*" >/dev/null
}

for ((i = 0; i < 600; i++)); do
    cat "$refs/megatron_data/text.jsonl"
done >"$folder/long.jsonl"
printf '{"text": "a"}\n\n' >"$folder/blank.jsonl"
claim 'makes the pair that Megatron makes' makes_megatrons_pair
claim 'takes several keys in both spellings' takes_megatrons_spelling_of_keys
claim 'takes .txt as plain text' takes_plain_text
claim 'stops on a signal and leaves nothing' stops_on_a_signal
claim 'killed, leaves nothing that looks whole' interrupted KILL 137
claim 'makes the pieces of a unigram model' makes_pieces unigram \
    --tokenizer-type SentencePieceTokenizer
claim 'makes the pieces and bytes of a BPE model' makes_pieces bpe \
    --tokenizer-type GPTSentencePieceTokenizer --workers 3
claim 'adds the special tokens of old Megatron' makes_pieces unigram_legacy \
    --tokenizer-type SentencePieceTokenizer --legacy-tokenizer
claim 'begins texts as old Megatron for Llama 2' makes_pieces bpe_llama2 \
    --tokenizer-type Llama2Tokenizer --legacy-tokenizer
cut_model 5000 cut.model
cut_model 0 empty.model
cut_model 16 piece.model
truncate -s 2G "$folder/huge.model"
sed 's|</s>|</x>|' "$refs/sentencepiece/unigram.model" >"$folder/endless.model"
printf '{"text": "caf\xe9"}\n' >"$folder/latin1.jsonl"
here=(--input "$refs/sentencepiece/tricky.jsonl")
claim 'refuses no model' refuses 2 '--tokenizer-model' "${here[@]}" "${pieces[@]}" ''
claim 'refuses a missing model' refuses 1 'none.model' "${here[@]}" "${pieces[@]}" "$folder/none.model"
claim 'refuses a folder' refuses 2 "$folder' is a folder" "${here[@]}" "${pieces[@]}" "$folder"
claim 'refuses a cut model' refuses 1 "cut.model' is no SentencePiece model, or only a part" \
    "${here[@]}" "${pieces[@]}" "$folder/cut.model"
claim 'refuses an empty model' refuses 1 "empty.model' is no SentencePiece model, or only a part" \
    "${here[@]}" "${pieces[@]}" "$folder/empty.model"
claim 'refuses a model cut between pieces' refuses 1 '1 pieces, no settings' \
    "${here[@]}" "${pieces[@]}" "$folder/piece.model"
claim 'refuses what is no model' refuses 1 "text.jsonl' is no SentencePiece model" \
    "${here[@]}" "${pieces[@]}" "$refs/megatron_data/text.jsonl"
claim 'refuses 2 GB' refuses 12 "huge.model' has 2147483648 bytes, at most" \
    "${here[@]}" "${pieces[@]}" "$folder/huge.model"
claim 'refuses an end that the model lacks' refuses 2 "endless.model' has no piece that ends" \
    "${here[@]}" "${pieces[@]}" "$folder/endless.model" --append-eod
claim 'refuses invalid UTF-8 before the pieces' refuses 1 "0xe9) in '$folder/latin1.jsonl' line 1" \
    --input "$folder/latin1.jsonl" "${pieces[@]}" "$refs/sentencepiece/unigram.model"
claim 'prints help' grep -q -- --json-keys <("$bin" --help)
claim 'refuses a blank line' refuses 1 "blank.jsonl' line 2" --input "$folder/blank.jsonl" "${bytes[@]}"
claim 'refuses a missing input' refuses 1 'none.jsonl' --input "$folder/none.jsonl" "${bytes[@]}"
claim 'refuses no input option' refuses 2 '--input' "${bytes[@]}"
claim 'refuses a tokenizer without files' refuses 2 '--vocab-file' --input "$folder/blank.jsonl"
claim 'refuses an unknown option' refuses 2 'workrs' --input "$folder/blank.jsonl" --workrs 2
claim 'refuses a stray argument' refuses 2 "'stray'" --input "$folder/blank.jsonl" "${bytes[@]}" stray
claim 'refuses a key given twice' refuses 2 "'a' given twice" --input "$folder/blank.jsonl" \
    "${bytes[@]}" --json-keys a,a
claim 'refuses a key that names a folder' refuses 2 "'a/b'" --input "$folder/blank.jsonl" \
    "${bytes[@]}" --json-keys a/b
claim 'refuses several keys of plain text' refuses 2 'plain text' --input "$folder/plain.txt" \
    "${bytes[@]}" --json-keys a,b
exit "$failed"
