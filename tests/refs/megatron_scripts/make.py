#!/usr/bin/env python3
"""Writes NAME.flags and NAME.arguments: the flags of Megatron-LM's example scripts and the values
that its arguments have once they are checked, printed in the format of its _print_args.

The flags and their values are those of the scripts named below; CHECKPOINT, TENSORBOARD, DATA,
vocab.json and merges.txt stand for the words that a user fills in.
"""
COMMON = dict(
    adam_beta1=0.9, adam_beta2=0.999, adam_eps=1e-8, attention_dropout=0.1, clip_grad=1.0,
    data_cache_path=None, data_path=["DATA"], decoder_first_pipeline_num_layers=None,
    decoder_last_pipeline_num_layers=None, eod_mask_loss=False, exit_interval=None, finetune=False,
    hidden_dropout=0.1, init_method_std=0.02, load="CHECKPOINT", lr_decay_style="cosine",
    lr_warmup_init=0.0, lr_warmup_iters=0, make_vocab_size_divisible_by=128,
    merge_file="merges.txt", norm_epsilon=1e-5, normalization="LayerNorm", num_workers=2,
    optimizer="adam", position_embedding_type="learned_absolute", reset_attention_mask=False,
    reset_position_ids=False, save="CHECKPOINT", seed=1234, train_samples=None,
    rank=0, untie_embeddings_and_output_weights=False, vocab_file="vocab.json",
    weight_decay_incr_style="constant")

GPT3 = dict(
    num_layers=96, hidden_size=12288, ffn_hidden_size=49152, num_attention_heads=96,
    kv_channels=128, seq_length=2048, max_position_embeddings=2048, micro_batch_size=1,
    global_batch_size=1536, rampup_batch_size=["16", "16", "5859375"], adam_beta2=0.95,
    init_method_std=0.006, lr=6.0e-5, min_lr=6.0e-6, weight_decay=0.1, start_weight_decay=0.1,
    end_weight_decay=0.1, tensor_model_parallel_size=8, pipeline_model_parallel_size=16,
    world_size=1024, data_parallel_size=8)

GPT2 = dict(
    num_layers=24, hidden_size=1024, ffn_hidden_size=4096, num_attention_heads=16, kv_channels=64,
    seq_length=1024, max_position_embeddings=1024, rampup_batch_size=None, lr=0.00015, min_lr=1e-5,
    weight_decay=0.01, start_weight_decay=0.01, end_weight_decay=0.01, train_iters=500000,
    lr_decay_iters=320000, lr_decay_samples=None, lr_warmup_samples=0, lr_warmup_fraction=0.01,
    log_interval=100, save_interval=10000, eval_interval=1000, eval_iters=10, split="949,50,1",
    world_size=8)

GPT2_FLAGS = """
    --seq-length 1024 --max-position-embeddings 1024 --train-iters 500000 --lr-decay-iters 320000
    --save CHECKPOINT --load CHECKPOINT --data-path DATA --vocab-file vocab.json
    --merge-file merges.txt --data-impl mmap --split 949,50,1 --distributed-backend nccl
    --lr 0.00015 --lr-decay-style cosine --min-lr 1.0e-5 --weight-decay 1e-2 --clip-grad 1.0
    {warmup} .01 --checkpoint-activations --log-interval 100 --save-interval 10000
    --eval-interval 1000 --eval-iters 10 --fp16"""

SCRIPTS = {
    # examples/gpt3/train_gpt3_175b_distributed.sh (core 0.8 and later)
    "gpt3_175b": ("""
        --num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048
        --max-position-embeddings 2048 --attention-backend auto
        --micro-batch-size 1 --global-batch-size 1536 --rampup-batch-size 16 16 5859375
        --train-iters 500000 --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95
        --init-method-std 0.006 --clip-grad 1.0 --fp16 --lr 6.0e-5 --lr-decay-style cosine
        --min-lr 6.0e-6 --lr-warmup-fraction .001 --lr-decay-iters 430000
        --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16
        --data-path DATA --vocab-file vocab.json --merge-file merges.txt --split 949,50,1
        --log-interval 100 --save-interval 10000 --eval-interval 1000 --save CHECKPOINT
        --load CHECKPOINT --eval-iters 10 --tensorboard-dir TENSORBOARD""",
        dict(GPT3, train_iters=500000, lr_decay_iters=430000, lr_decay_samples=None,
             lr_warmup_samples=0, lr_warmup_fraction=0.001, log_interval=100, save_interval=10000,
             eval_interval=1000, eval_iters=10, split="949,50,1", recompute_granularity=None)),
    # examples/pretrain_gpt3_175B.sh (releases 2 and 3)
    "gpt3_175b_samples": ("""
        --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 --num-layers 96
        --hidden-size 12288 --num-attention-heads 96 --seq-length 2048
        --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 1536
        --rampup-batch-size 16 16 5859375 --train-samples 146484375 --lr-decay-samples 126953125
        --lr-warmup-samples 183105 --lr 6.0e-5 --min-lr 6.0e-6 --lr-decay-style cosine
        --log-interval 10 --eval-iters 40 --eval-interval 1000
        --data-path 0.2 DATA 0.3 DATA 0.5 DATA
        --vocab-file vocab.json --merge-file merges.txt --save-interval 1000 --save CHECKPOINT
        --load CHECKPOINT --split 98,2,0 --clip-grad 1.0 --weight-decay 0.1 --adam-beta1 0.9
        --adam-beta2 0.95 --init-method-std 0.006 --tensorboard-dir TENSORBOARD --fp16
        --checkpoint-activations""",
        dict(GPT3, train_samples=146484375, train_iters=None, lr_decay_samples=126953125,
             lr_decay_iters=None, lr_warmup_samples=183105, lr_warmup_fraction=None,
             log_interval=10, eval_iters=40, eval_interval=1000, save_interval=1000,
             split="98,2,0", data_path=["0.2", "DATA", "0.3", "DATA", "0.5", "DATA"],
             recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1)),
    # examples/pretrain_gpt_distributed_with_mp.sh (releases 2.1 to 3)
    "gpt_with_mp": ("""
        --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --num-layers 24
        --hidden-size 1024 --num-attention-heads 16 --micro-batch-size 4 --global-batch-size 16"""
        + GPT2_FLAGS.format(warmup="--lr-warmup-fraction"),
        dict(GPT2, data_parallel_size=2, micro_batch_size=4, global_batch_size=16,
             tensor_model_parallel_size=2,
             pipeline_model_parallel_size=2, recompute_granularity="full",
             recompute_method="uniform", recompute_num_layers=1)),
    # examples/pretrain_gpt_distributed.sh (releases 2.1 to 3)
    "gpt_distributed": ("""
        --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --micro-batch-size 8
        --global-batch-size 64""" + GPT2_FLAGS.format(warmup="--lr-warmup-fraction"),
        dict(GPT2, data_parallel_size=8, micro_batch_size=8, global_batch_size=64,
             tensor_model_parallel_size=1,
             pipeline_model_parallel_size=1)),
    # examples/pretrain_gpt2_distributed_with_mp.sh (before release 2.1): with two DP ranks the
    # global batch is 4 x 2 x 2
    "gpt2_with_mp": ("""
        --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --num-layers 24
        --hidden-size 1024 --num-attention-heads 16 --batch-size 4
        --num-microbatches-in-minibatch 2""" + GPT2_FLAGS.format(warmup="--warmup"),
        dict(GPT2, data_parallel_size=2, micro_batch_size=4, global_batch_size=16,
             tensor_model_parallel_size=2,
             pipeline_model_parallel_size=2)),
}

for name, (flags, values) in SCRIPTS.items():
    with open(name + ".flags", "w") as out:
        out.write(" ".join(flags.split()).replace(" --", "\n--") + "\n")
    lines = ["  {} {} {}".format(name, "." * (48 - len(name)), value)
             for name, value in {**COMMON, **values}.items()]
    with open(name + ".arguments", "w") as out:
        out.write("\n".join(sorted(lines, key=str.lower)) + "\n")
