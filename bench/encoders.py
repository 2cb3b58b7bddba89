"""Sixteen encoders trained in one program beside PyTorch (eager, CPU), which trains the same
network sixteen times: `make bench-torch`.

PyTorch lives in an environment of its own, as in `bench.peers`. Both sides draw the same kind of
batches and take the same steps of AdamW; each runs in a process that has imported what it needs.
Processor time is compared, which other work on the machine does not change. PyTorch has one thread:
with tensors as small as these it is slower with more, and takes several times the processor time.
"""

import subprocess
import sys
import time
from statistics import median

import jax
import numpy as np
from rich.console import Console

from attlas.latent_posterior.encoders import Recipe, random_encoder, train_encoders
from attlas.latent_posterior.latent_tasks import Topics
from bench.__main__ import table_of
from bench.timing import Row

RUNS, STEPS, BATCH, WIDTH, HEADS, VOCABULARY, LATENTS, LENGTH = 16, 100, 32, 16, 2, 8, 3, 16

PEER = """
import math, sys, time, torch
from torch import nn
runs, steps, batch, width, heads, vocabulary, latents, length = map(int, sys.argv[1:])
torch.set_num_threads(1)
rank = width // heads

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        def normal(*shape):
            return nn.Parameter(torch.randn(shape) / math.sqrt(shape[-2]))
        self.embed, self.blank = normal(vocabulary, width), normal(1, width)
        self.query, self.key = normal(heads, width, rank), normal(heads, width, rank)
        self.value = normal(heads, width, width)
        self.log_temperature = nn.Parameter(torch.full((heads,), math.log(rank) / 2))
        self.inner, self.outer = normal(width, 4 * width), normal(4 * width, width)
        self.read = nn.Parameter(torch.zeros(width, vocabulary))
    def forward(self, counts):
        states = torch.cat([self.embed, self.blank])
        seen = norm(states)
        counts = torch.cat([counts, torch.ones(len(counts), 1)], 1)
        scores = torch.einsum("hr,hnr->hn", seen[-1] @ self.query, seen @ self.key)
        scores = scores / self.log_temperature.exp()[:, None] + counts.log()[:, None]
        heard = torch.einsum("bhn,hnk->bk", scores.softmax(-1), seen @ self.value)
        state = states[-1] + heard
        state = state + nn.functional.gelu(norm(state) @ self.inner) @ self.outer
        return norm(state) @ self.read

def norm(x):
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()

def train():
    words = torch.distributions.Dirichlet(torch.ones(vocabulary)).sample((latents,))
    model = Encoder()
    optimiser = torch.optim.AdamW(model.parameters(), 1e-2, (0.9, 0.99), weight_decay=0)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        z = torch.randint(latents, (batch,))
        drawn = torch.multinomial(words[z], length + 1, replacement=True)
        counts = nn.functional.one_hot(drawn[:, :-1], vocabulary).sum(1).float()
        loss = nn.functional.cross_entropy(model(counts), drawn[:, -1])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        falling.step()
    return loss.item()

print("ready", flush=True)
for _ in sys.stdin:
    start = time.process_time()
    total = sum(train() for _ in range(runs))
    print(total, time.process_time() - start, flush=True)
"""


def main(python: str) -> None:
    rng = np.random.default_rng(0)
    words = rng.dirichlet(np.ones(VOCABULARY), (RUNS, LATENTS))
    prior = np.full((RUNS, LATENTS), 1 / LATENTS)
    topics = Topics(prior, words, words, np.full(RUNS, LENGTH))
    keys = jax.random.split(jax.random.key(0), RUNS)
    start = jax.vmap(
        lambda key: random_encoder(key, VOCABULARY, VOCABULARY, width=WIDTH, heads=HEADS)
    )(keys)
    sizes = map(str, (RUNS, STEPS, BATCH, WIDTH, HEADS, VOCABULARY, LATENTS, LENGTH))
    with subprocess.Popen(
        [python, "-c", PEER, *sizes], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as peer:
        assert peer.stdin is not None and peer.stdout is not None
        assert peer.stdout.readline().strip() == "ready", f"{python} cannot import torch"

        def eager() -> float:
            assert peer.stdin is not None and peer.stdout is not None
            peer.stdin.write("\n")
            peer.stdin.flush()
            loss, spent = map(float, peer.stdout.readline().split())
            assert np.isfinite(loss), "PyTorch's loss is not finite"
            return spent

        def ours() -> float:
            before = time.process_time()
            found = train_encoders(start, topics, keys, Recipe(STEPS, BATCH, 1e-2))
            assert found.finite.all()
            return time.process_time() - before

        ours()
        eager()
        mine, theirs = zip(*((ours(), eager()) for _ in range(3)), strict=True)
        row = Row(
            f"{RUNS} encoders trained for {STEPS} steps in one program, against as many eager runs"
            " of PyTorch, processor time",
            median(mine),
            median(theirs),
            "8 or more",
        )
        peer.stdin.close()
    Console(highlight=False, width=160).print(table_of([row]))


if __name__ == "__main__":
    main(sys.argv[1])
