r"""Tasks in which words come one after the other: prefixes of any length, and words whose order
says something.

`Prefixes` are the start of a sequence from a topic, of a length that is drawn too. `Chains` have a
hidden state that moves from word to word, so that their words are not exchangeable: a latent that
drifts, or a Markov chain of words where the state is the word. Their exact predictions are those of
the forward filter. `Bags` are the same words without their positions.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attlas.latent_posterior.inference import sequences
from attlas.latent_posterior.latent_tasks import Data, Topics, _quantile
from attlas.surface import public


class Prefixes(NamedTuple):
    """The first words of sequences from `topics`, any number of them from 0 to the length less 1
    with equal chances, and an answer."""

    topics: Topics

    @property
    def length(self) -> Int[Any, "*run"]:
        return self.topics.length

    @property
    def outputs(self) -> int:
        return self.topics.outputs

    @public
    def draw(self, key: Array, samples: int, longest: int) -> Data:
        keys, cuts = jax.random.split(key)
        seen = jax.random.randint(cuts, (samples,), 0, self.length)
        one = jax.vmap(lambda k, t: self.topics._replace(length=t).draw(k, 1, longest))
        return jax.tree.map(lambda x: x[:, 0], one(jax.random.split(keys, samples), seen))

    def bayes(self, seen: Data) -> Float[np.ndarray, "run n o"]:
        return self.topics.bayes(seen)


class Chains(NamedTuple):
    """A hidden state of law `start`, which moves before every further word by `moves`, `length`
    words of law `words`[state], and the next word as the answer.

    A token is a word at its position: `counts` has an entry for each of both, position first.
    """

    start: Float[Any, "run m"]
    moves: Float[Any, "run m m"]
    words: Float[Any, "run m vocabulary"]
    length: Int[Any, " run"]

    @property
    def outputs(self) -> int:
        return self.words.shape[-1]

    @public
    def draw(self, key: Array, samples: int, longest: int) -> Data:
        places = jax.random.uniform(key, (longest + 1, 2, samples))
        first = _quantile(places[0, 0], self.start)

        def move(state: Array, place: Array) -> tuple[Array, Array]:
            word = _quantile(place[1], self.words[state])
            return _quantile(place[0], self.moves[state]), word

        # The places of a row move the state after its word; the first row's also start it.
        moved = jnp.concatenate([places[1:, 0], places[:1, 0]])
        _, words = jax.lax.scan(move, first, jnp.stack([moved, places[:, 1]], 1))
        one_hot = words[:longest, :, None] == jnp.arange(self.words.shape[-1])
        counts = one_hot.swapaxes(0, 1).reshape(samples, -1).astype(places.dtype)
        return Data(counts, words[longest])

    def filtered(
        self, words: Int[np.ndarray, "n length"]
    ) -> tuple[Float[np.ndarray, "run n"], Float[np.ndarray, "run n o"]]:
        """The probability of each sequence, and the law of its next word, by the forward filter."""
        law = np.ones((len(self.start), len(words)))
        state = np.repeat(np.asarray(self.start, float)[:, None], len(words), 1)
        for word in words.T:
            joint = state * np.asarray(self.words, float)[:, :, word].swapaxes(1, 2)
            seen = joint.sum(-1)
            law, state = law * seen, joint / seen[..., None] @ self.moves
        return law, state @ self.words

    def bayes(self, seen: Data) -> Float[np.ndarray, "run n o"]:
        shape = (*seen.counts.shape[:2], -1, self.outputs)
        words = np.asarray(seen.counts).reshape(shape).argmax(-1)
        return np.stack(
            [
                Chains(*(x[run : run + 1] for x in self)).filtered(some)[1][0]
                for run, some in enumerate(words)
            ]
        )


class Bags(NamedTuple):
    """`chains` whose positions are not shown: `counts` has an entry for each word."""

    chains: Chains

    @property
    def length(self) -> Int[Any, "*run"]:
        return self.chains.length

    @property
    def outputs(self) -> int:
        return self.chains.outputs

    @public
    def draw(self, key: Array, samples: int, longest: int) -> Data:
        drawn = self.chains.draw(key, samples, longest)
        return drawn._replace(counts=self.without_positions(drawn.counts))

    def without_positions(self, counts: Float[Any, "*n t"]) -> Float[Any, "*n vocabulary"]:
        return counts.reshape(*counts.shape[:-1], -1, self.outputs).sum(-2)

    def bayes(self, seen: Data) -> Float[np.ndarray, "run n o"]:
        """The law of the next word given the counts, by summing over all orders."""
        words, law, following = enumerated(self.chains)
        joint, row = by_counts(words, law, following, self.outputs)
        asked = np.asarray(seen.counts, int)
        return np.stack([joint[run, row[tuple(n.T)]] for run, n in enumerate(asked)])


def enumerated(
    chains: Chains,
) -> tuple[Int[np.ndarray, "k length"], Float[np.ndarray, "run k"], Float[np.ndarray, "run k o"]]:
    """All sequences of the first run's length, their probabilities and the law of the next word."""
    words = sequences(chains.outputs, int(chains.length[0]))
    return words, *chains.filtered(words)


def by_counts(
    words: Int[np.ndarray, "k length"],
    law: Float[np.ndarray, "run k"],
    following: Float[np.ndarray, "run k o"],
    vocabulary: int,
) -> tuple[Float[np.ndarray, "run bag o"], Int[np.ndarray, "..."]]:
    """The law of the next word given the counts of those seen, of each bag that there is, and a
    table from counts to bags."""
    counts = (words[..., None] == np.arange(vocabulary)).sum(1)
    bags, which = np.unique(counts, axis=0, return_inverse=True)
    member = np.eye(len(bags))[which.ravel()]
    joint = np.einsum("rk,rko,kb->rbo", law, following, member)
    row = np.full((words.shape[1] + 1,) * vocabulary, -1)
    row[tuple(bags.T)] = np.arange(len(bags))
    return joint / joint.sum(-1, keepdims=True), row


def order_information(chains: Chains) -> Float[np.ndarray, " run"]:
    r"""What the order of the words says of the next beside their counts, in nats:
    $E\,KL(P(y \mid X)\,\|\,P(y \mid N))$, which no network without positions can have."""
    words, law, following = enumerated(chains)
    joint, row = by_counts(words, law, following, chains.outputs)
    counts = (words[..., None] == np.arange(chains.outputs)).sum(1)
    given = joint[:, row[tuple(counts.T)]]
    return (law * (following * np.log(following / given)).sum(-1)).sum(-1)
