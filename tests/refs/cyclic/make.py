#!/usr/bin/env python3
"""Writes order.txt (needs numpy): in which order Megatron-LM's MegatronPretrainingRandomSampler,
played here rank by rank, gives the samples of a data set.

A line: samples, micro-batch size, DP size, data sharding (0 or 1), consumed samples at the start,
a colon, then the samples of the micro-batches that follow, rank after rank in each.
Also randperm.txt: seed, n, a colon, the first and last four of torch.randperm(n).

torch.randperm is done by hand, so that torch need not be there: for up to 2^32 / 20 numbers it
swaps each with one of those behind it, drawn by the Mersenne Twister that RandomState has too. The
asserts are what torch 1 and 2 print for torch.manual_seed(0 or 42); torch.randperm(10); where torch
is installed all are compared.
"""
import numpy

try:
    import torch
except ImportError:
    torch = None


def permutation(seed, n):
    words = numpy.random.RandomState(seed).randint(0, 2**32, size=n, dtype=numpy.uint32)
    order = list(range(n))
    for i in range(n - 1):
        other = i + int(words[i]) % (n - i)
        order[i], order[other] = order[other], order[i]
    if torch is not None:
        generator = torch.Generator()
        generator.manual_seed(seed)
        assert order == torch.randperm(n, generator=generator).tolist()
    return order


assert permutation(0, 10) == [4, 1, 7, 5, 3, 9, 0, 8, 6, 2]
assert permutation(42, 10) == [2, 6, 1, 8, 4, 5, 0, 9, 3, 7]


def epoch_batches(samples, mbs, dp, sharding, consumed, rank):
    """The micro-batches of one rank from `consumed` to the end of that epoch."""
    at_once = mbs * dp
    active = samples - samples % at_once
    epoch, within = divmod(consumed, active)
    if sharding:
        bucket = samples // at_once * mbs
        order = [rank * bucket + x for x in permutation(epoch, bucket)[within // dp:]]
    else:
        order = permutation(epoch, samples // mbs * mbs)[within:][rank::dp]
    left = (active - within) // at_once  # an incomplete last one is dropped
    return [order[i * mbs:(i + 1) * mbs] for i in range(left)]


def play(samples, mbs, dp, sharding, consumed, epochs):
    out = []
    for _ in range(epochs):
        ranks = [epoch_batches(samples, mbs, dp, sharding, consumed, rank) for rank in range(dp)]
        for batches in zip(*ranks):
            for batch in batches:
                out += batch
            consumed += mbs * dp
    return out


CASES = [(24, 2, 3, True, 0, 3), (24, 2, 3, False, 0, 3), (29, 2, 3, True, 0, 2),
         (29, 2, 3, False, 0, 2), (29, 2, 3, True, 12, 2), (29, 3, 2, False, 18, 2),
         (31, 1, 1, True, 70, 2), (31, 4, 1, False, 28, 1), (700, 2, 4, True, 0, 1)]
with open("order.txt", "w") as out:
    for samples, mbs, dp, sharding, consumed, epochs in CASES:
        order = play(samples, mbs, dp, sharding, consumed, epochs)
        print(samples, mbs, dp, int(sharding), consumed, ":", *order, file=out)
with open("randperm.txt", "w") as out:
    for seed, n in [(0, 10), (1, 1), (2, 2), (3, 1000), (1234, 100000), (2**31 + 5, 777)]:
        order = permutation(seed, n)
        print(seed, n, ":", *order[:4], *order[-4:], file=out)
