#!/usr/bin/env bash
# duties.sh BIN: what a training does beside its steps, seen in its log lines: batches that grow,
# schedules that go on after a resume, flags that say what to take from a checkpoint, ends.
set -uo pipefail
PATH=$1:$PATH
home=$(mktemp -d "${TMPDIR:-/tmp}/holdfast-duties.XXXXXX")
export TMPDIR=$home # of the agents' run folders
trap 'kill $(jobs -p) 2>/dev/null; wait; rm -rf "$home"' EXIT
cd "$home" || exit 2
failures=0

fail() {
    printf 'FAILED: %s\n' "$1"
    grep -vE '  [a-z0-9_]+ \.\.\.' "${2:-/dev/null}"
    failures=$((failures + 1))
}

model=(--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16
    --max-position-embeddings 16 --vocab-size 61 --mock-data --micro-batch-size 2 --lr 1e-3
    --num-threads 1 --log-interval 1)

# train RANKS CODE OUT FLAGS...: the ranks end with CODE; what they print is in OUT.
train() {
    local ranks=$1 code=$2 out=$3 got
    shift 3
    if [ "$ranks" = 1 ]; then
        timeout -s KILL 60 holdfast train "${model[@]}" "$@" >"$out" 2>&1
    else
        timeout -s KILL 60 holdfast run --nproc-per-node "$ranks" -- train "${model[@]}" "$@" \
            >"$out" 2>&1
    fi
    got=$?
    [ "$got" = "$code" ] || fail "$* left with $got, wanted $code" "$out"
}

# steps OUT...: iteration, consumed samples, learning rate, batch and loss of every log line.
steps() {
    sed -n 's/.*\] iteration *\([0-9]*\).*consumed samples: *\([0-9]*\) .*learning rate: \([^ ]*\) .*batch size: *\([0-9]*\) .*lm loss: \([^ ]*\) .*/\1 \2 \3 \4 \5/p' "$@"
}
sets() { # OUT: where and on what validations were made
    sed -n 's/.* validation loss at iteration \([^|]*\) | .*/\1/p' "$1"
}
same() { # WHAT A B
    diff "$2" "$3" >diff.txt || fail "$1: $(cat diff.txt)"
}
says() { # OUT TEXT
    grep -qF -- "$2" "$1" || fail "missing: \"$2\"" "$1"
}

# --- batches that grow ----------------------------------------------------------------------------

ramp=(--train-iters 16 --global-batch-size 16 --rampup-batch-size 4 4 64 --lr-warmup-iters 3
    --eval-interval 5 --eval-iters 1)
train 2 0 whole.out "${ramp[@]}"
steps whole.out | cut -d ' ' -f 2,4 >grown
# Megatron's table for this ramp: samples after each step, its batch.
printf '%s\n' '4 4' '8 4' '12 4' '16 4' '20 4' '24 4' '32 8' '40 8' '48 8' '60 12' '72 12' '88 16' \
    '104 16' '120 16' '136 16' '152 16' >table
same 'the ramp is not Megatron'\''s' table grown
# The warm-up of 3 x 16 samples counts samples: its rates after 4, 24 and 48 of them.
steps whole.out | sed -n '1p;6p;9p' | cut -d ' ' -f 3 >parts
printf '%s\n' 8.333333E-05 5.000000E-04 1.000000E-03 >table
same 'the rates of a growing batch' table parts
save=(--save ramp --load ramp --save-interval 100)
train 2 0 first.out "${ramp[@]}" "${save[@]}" --exit-interval 8
train 2 0 second.out "${ramp[@]}" "${save[@]}"
steps whole.out >whole
steps first.out second.out >parts
same 'a resume inside the ramp' whole parts
grep 'validation loss at' whole.out >whole
cat first.out second.out | grep 'validation loss at' >parts
same 'validation inside the ramp' whole parts

# --- whose schedule -------------------------------------------------------------------------------

# rates OUT...: iteration and learning rate of every log line.
rates() {
    steps "$@" | cut -d ' ' -f 1,3
}
old=(--train-iters 12 --lr-decay-style cosine --min-lr 1e-4 --lr-warmup-iters 2 --weight-decay 0.1)
new=(--train-iters 12 --lr-decay-style linear --lr 5e-3 --lr-warmup-iters 2 --weight-decay 0.5)
train 1 0 old.out "${old[@]}"
train 1 0 new.out "${new[@]}"
train 1 0 first.out "${old[@]}" --save plan --save-interval 6 --exit-interval 6
plan=(--load plan)
train 1 14 refused.out "${new[@]}" "${plan[@]}"
says refused.out '--lr is 0.005 here and 0.001 there'
says refused.out '--weight-decay is 0.5 here and 0.1 there'
says refused.out '--override-opt-param-scheduler'
train 1 0 override.out "${new[@]}" "${plan[@]}" --override-opt_param-scheduler
rates new.out | tail -n 6 >whole
rates override.out >parts
same 'the rates of the flags' whole parts
train 1 0 checkpoint.out "${new[@]}" "${plan[@]}" --use-checkpoint-opt_param-scheduler \
    --save adopted --save-interval 3 --exit-interval 9
rates old.out | sed -n 7,9p >whole
rates checkpoint.out >parts
same 'the rates of the checkpoint' whole parts
# Weight decay too, from the first step on: the losses are those of the run that was never stopped.
steps old.out | sed -n 7,9p >whole
steps checkpoint.out >parts
same 'the steps after a resume by the checkpoint'\''s schedule' whole parts
# What was adopted is what the next checkpoint says.
train 1 0 again.out "${old[@]}" --load adopted
steps old.out | tail -n 3 >whole
steps again.out >parts
same 'the steps after adopting a schedule' whole parts
steps override.out | cut -d ' ' -f 5 | tail -n 5 >parts
steps old.out | cut -d ' ' -f 5 | tail -n 5 >whole
! cmp -s whole parts || fail 'another schedule makes no difference'

# --- what of a checkpoint -------------------------------------------------------------------------

train 1 0 moments.out "${old[@]}" "${plan[@]}" --no-load-optim --no-load-rng --save fresh \
    --save-interval 6
grep -qE '"optimizer_updates":[[:space:]]*6\b' fresh/step_0000012/manifest.json ||
    fail 'the correction of fresh moments does not begin anew'
rates old.out | tail -n 6 >whole
rates moments.out >parts
same 'the rates without moments' whole parts
[ "$(steps moments.out | head -n 1)" = "$(steps old.out | sed -n 7p)" ] ||
    fail 'the first step without moments begins from other weights'
[ "$(steps moments.out | tail -n 1)" != "$(steps old.out | tail -n 1)" ] ||
    fail 'moments were loaded'
train 2 0 tune.out "${new[@]}" "${plan[@]}" --finetune --seed 7 --save tuned --save-interval 6
rates tune.out >parts
rates new.out >whole
same 'the rates of finetuning' whole parts
says tune.out "finetuning: the weights are those of 'plan/step_0000006'"
train 1 2 done.out "${new[@]}" --load plan --finetune --save plan --save-interval 6
says done.out '--finetune needs'
[ "$(ls -d tuned/step_*)" = "$(printf '%s\n' tuned/step_0000006 tuned/step_0000012)" ] ||
    fail 'finetuning saved elsewhere'

# --- options from elsewhere ------------------------------------------------------------------------

cat >run.yaml <<'EOF'
train_iters: 16
batch:
  global-batch-size: 16
  rampup-batch-size: [4, 4, 64]
lr-warmup-iters: 9
eval-interval: 5
eval-iters: 1
wandb-project: mine
EOF
train 2 0 config.out --config run.yaml --lr-warmup-iters 3
steps whole.out >whole
steps config.out >parts
same 'a run by --config' whole parts
says config.out 'wandb-project is accepted and changes nothing'
timeout 60 holdfast train --use-checkpoint-args --load plan --mock-data --micro-batch-size 2 \
    --lr 1e-3 --num-threads 1 --log-interval 1 "${old[@]}" >args.out 2>&1 ||
    fail '--use-checkpoint-args' args.out
steps old.out | tail -n 6 >whole
steps args.out >parts
same 'a resume by --use-checkpoint-args' whole parts
train 1 0 first.out "${old[@]}" --adam-eps 1e-6 --save eps --save-interval 6 --exit-interval 6
train 1 0 args.out "${old[@]}" --use-checkpoint-args --load eps
grep -qE 'adam_eps \.+ 1e-08' args.out || fail 'more is taken than what must be as it was' args.out
train 1 14 args.out --use-checkpoint-args --load plan "${old[@]}" --num-layers 3 --seed 5
says args.out "differs from 'plan/step_0000006': --num-layers is 3 here and 2 there, --seed is 5 here and"
train 1 14 args.out --use-checkpoint-args --load plan "${old[@]}" --num-layers 3 --seed 5 --finetune
says args.out "'plan/step_0000006': --num-layers is 3 here and 2 there; leave it out"
train 2 0 first.out "${old[@]}" --tensor-model-parallel-size 2 --save halves --save-interval 6 \
    --exit-interval 6
train 2 0 args.out "${old[@]}" --load halves --use-checkpoint-args --use-mp-args-from-checkpoint-args
says args.out 'TP 2 x PP 1 x DP 1 -> TP 2 x PP 1 x DP 1'
train 1 2 args.out "${old[@]}" --load halves --use-mp-args-from-checkpoint-args
train 1 2 args.out --use-checkpoint-args "${old[@]}"
train 1 10 args.out --use-checkpoint-args --load nowhere "${old[@]}"
again=("${old[@]}" --use-checkpoint-args --save again --load again --save-interval 6)
train 1 0 args.out "${again[@]}" --exit-interval 6
says args.out "no checkpoint in 'again', what is given counts"
train 1 0 args.out "${again[@]}"
says args.out "options are those of 'again/step_0000006'"

# --- ends -----------------------------------------------------------------------------------------

train 2 0 sets.out --train-iters 4 --eval-interval 2 --eval-iters 3
sets sets.out >parts
printf '%s\n' '2' '4' '4 on validation set' '4 on test set' >whole
same 'validations' whole parts
train 1 0 none.out --train-iters 4 --eval-interval 2 --eval-iters 0
sets none.out >parts
same 'no validations' /dev/null parts
train 1 0 skip.out --train-iters 5 --iterations-to-skip 2 3 --global-batch-size 4 \
    --lr-warmup-iters 4
steps skip.out | cut -d ' ' -f 1-3 >parts
printf '%s\n' '1 4 2.500000E-04' '2 8 5.000000E-04' '5 20 7.500000E-04' >whole
same 'steps, samples and rates around two skipped steps' whole parts
train 1 75 late.out --train-iters 50 --exit-duration-in-mins 0.00001 --save late --save-interval 10
says late.out 'stopped by --exit-duration-in-mins after step 1, which is saved'
train 1 0 late.out --train-iters 3 --exit-duration-in-mins 1
train 1 2 words.out --train-iters 5 --iterations-to-skip 2,3
says words.out "--iterations-to-skip '2,3'"

# --- fields of the log line -----------------------------------------------------------------------

asked=(--train-iters 3 --global-batch-size 8 --log-params-norm --log-num-zeros-in-grad)
fields() {
    sed -n 's/.*\(grad norm: .* | num zeros: .* | params norm: [^ ]*\) |.*/\1/p' "$1"
}
train 1 0 one.out "${asked[@]}" --log-throughput --peak-tflops 1
says one.out 'throughput per GPU (TFLOP/s/GPU): '
says one.out '% (full)'
fields one.out >whole
[ "$(wc -l <whole)" = 3 ] || fail 'fields are missing' one.out
for layout in '1 1' '2 1' '1 2'; do # TP and PP of 2 ranks: the same numbers
    read -r tp pp <<<"$layout"
    train 2 0 two.out "${asked[@]}" --tensor-model-parallel-size "$tp" \
        --pipeline-model-parallel-size "$pp"
    fields two.out >parts
    same "norms and zeros of TP $tp x PP $pp" whole parts
done

# --- numbers that are not finite ------------------------------------------------------------------

wild=(--train-iters 12 --lr 1e6 --min-lr 1e6 --weight-decay 10)
train 1 1 nan.out "${wild[@]}"
says nan.out 'not finite first on rank 0: the loss, of finite weights; lower --lr'
train 1 0 nan.out "${wild[@]}" --no-check-for-nan-in-loss-and-grad
steps nan.out | tail -n 1 | grep -q 'NAN$' || fail 'a loss that is finite again' nan.out

# --- a loss that leaps ----------------------------------------------------------------------------

for ((i = 0; i < 600; i++)); do
    echo '{"text": "a line that is read again and again and again"}'
done >text.jsonl
echo '{"text": "qZ7;Jx0~K}48QX[w#Vy1!BuP"}' >>text.jsonl
holdfast preprocess --input text.jsonl --output-prefix text --tokenizer-type ByteTokenizer \
    --append-eod 2>/dev/null || fail 'preprocess'
calm=(--vocab-size 257 --micro-batch-size 1 --global-batch-size 4 --log-interval 100)
train 4 0 data.out "${calm[@]}" --no-mock-data --data-path text_text_document --split 1,0,0 --lr 1e-2 \
    --lr-decay-style constant --train-iters 330 --seed 2 --attention-dropout 0 --hidden-dropout 0
grep -q 'warning: loss .* deviations above those before: its data: rank [0-3] has .* from sample' \
    data.out || fail 'strange samples are not named' data.out
train 2 0 weights.out "${calm[@]}" --lr 20 --lr-decay-iters 10000 --lr-warmup-iters 900 \
    --train-iters 150
says weights.out 'deviations above those before: its weights'
train 2 0 weights.out "${calm[@]}" --lr 20 --lr-decay-iters 10000 --lr-warmup-iters 900 \
    --train-iters 150 --no-check-for-spiky-loss
! grep -q deviations weights.out || fail 'a warning that nobody wants' weights.out

[ "$failures" = 0 ] || exit 1
echo 'all duties are done'
