r"""Heads that provably compute sparse functions, with weights, margins and norms in closed form.

A bit at place t is the token $x_t = (v_t + e_{b_t})/\sqrt2$. All weights lie in the span of the
anchors, the embeddings of the relevant places, of the two bits and of [CLS]. They are given by the
inner products that they must have with these: $\beta$ with the relevant places, 0 with the bits,
and so on.

With orthonormal embeddings the products with other places are 0. With random ones they are small,
and a larger $\beta$ makes up for them: thresholds and staircases have the same margins and larger
norms.

A head sees a sequence through these products alone: T + 2 numbers instead of a product of dimension
d for each token. Edelman et al. 2022, Section 4.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import ArrayLike, Float
from scipy import special

from attlas import attention
from attlas.capacity import Capacity, capacity_of
from attlas.errors import InputError, positive
from attlas.sparse_variables.embedding import CHUNK, SPECIAL, Embedding, Orthonormal
from attlas.sparse_variables.task import SparseBoolean, patterns
from attlas.surface import public


@dataclass(frozen=True, eq=False, repr=False)
class Construction:
    r"""A head that computes a sparse function; the sign of its output is the label.

    $f(b) = \text{out}^\top\sigma\big(\text{mix}^\top\sum_t p_t\,\text{read}(x_t)\big)$ with
    attention $p = \mathrm{softmax}(\langle\text{score}, x_t\rangle)$.

    Arguments:
        task, embedding: what is computed, and on which tokens.
        sharpness: the c of the formulas.
        score: of shape [s + 3], coefficients of the anchors (relevant places, bits, [CLS]).
        read: [s + 3, r], coefficients of the r numbers that are read from a token.
        mix: [r, k], from these to the k value units.
        out: [k], the read-out of the units.
        margin: the least $|f|$ over all inputs, negative if some input is misjudged.
        builder: the function that made it.
        relu: whether value units pass a ReLU.
        attend: whether [CLS] is a key too.
    """

    task: SparseBoolean
    embedding: Embedding
    sharpness: float
    score: Float[np.ndarray, " anchors"]
    read: Float[np.ndarray, "anchors r"]
    mix: Float[np.ndarray, "r k"]
    out: Float[np.ndarray, " k"]
    margin: float
    builder: "Builder"
    relu: bool = False
    attend: bool = False

    def __repr__(self) -> str:
        return (
            f"{self.builder.__name__}({self.task}, sharpness={self.sharpness:g},"
            f" embedding={self.embedding}): {len(self.out)} value units, margin {self.margin:.4g},"
            f" norm of the scores {self.score_norm:.4g}, of the read-out {self.out_norm:.4g}"
        )

    @functools.cached_property
    def _tables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        r"""Weights $e^{score}$ [2, length], relative to the largest, and values [2, length, r] of
        (bit, place); weight and values of [CLS], [1 + r]."""
        columns = np.column_stack([self.score, self.read])
        found = self.embedding.products(self.task.support, columns)
        places, bits, cls = found[:-SPECIAL], found[-SPECIAL:-1], found[-1]
        table = places[None] + bits[:, None]
        top = max(table[..., 0].max(), cls[0] if self.attend else -np.inf)
        weight = np.exp(table[..., 0] - top)
        own = np.append(np.exp(cls[0] - top) if self.attend else 0.0, cls[1:])
        return weight, table[..., 1:], own

    def __call__(self, bits: ArrayLike) -> Float[np.ndarray, "*n"]:
        """The head's output on sequences of bits [*n, length], a chunk of places at a time."""
        bits = self._check_bits(bits)
        weight, values, cls = self._tables
        columns = (
            np.concatenate([np.ones((2, self.task.length, 1)), values], -1) * weight[..., None]
        )
        total = cls[0] * np.append(1.0, cls[1:]) + np.zeros((*bits.shape[:-1], 1))
        for i in range(0, self.task.length, CHUNK):
            part, here = bits[..., i : i + CHUNK].astype(float), columns[:, i : i + CHUNK]
            total = total + (1 - part) @ here[0] + part @ here[1]
        units = total[..., 1:] / total[..., :1] @ self.mix
        return (np.maximum(units, 0) if self.relu else units) @ self.out

    def weights(self, bits: ArrayLike) -> Float[np.ndarray, "*n keys"]:
        """The attention on each place, and last on [CLS]."""
        bits = self._check_bits(bits)
        weight, _, cls = self._tables
        powers = np.where(bits == 1, weight[1], weight[0])
        powers = np.concatenate([powers, np.full((*bits.shape[:-1], 1), cls[0])], -1)
        return powers / powers.sum(-1, keepdims=True)

    def predict(self, bits: ArrayLike) -> np.ndarray:
        """The label that the head gives, 0 or 1."""
        return (self(bits) > 0).astype(np.uint8)

    def _check_bits(self, bits: ArrayLike) -> np.ndarray:
        bits = np.asarray(bits)
        self.task.check_shape(bits)
        wrong = bits[~np.isin(bits, (0, 1))]
        if wrong.size:
            raise InputError(f"bits have the value {wrong[0]!r}: they must be 0 or 1")
        return bits

    @functools.cached_property
    def score_norm(self) -> float:
        r"""$|u|$ for unit tokens; u is $\sqrt2$ times the combination of the anchors."""
        gram = self.embedding.gram(self.task.support)
        return float(np.sqrt(2 * self.score @ gram @ self.score))

    @functools.cached_property
    def value_norms(self) -> Float[np.ndarray, " k"]:
        """The length of each value unit, for tokens of unit length."""
        gram = self.embedding.gram(self.task.support)
        units = self.read @ self.mix
        return np.sqrt(2 * np.einsum("ik,ij,jk->k", units, gram, units))

    @functools.cached_property
    def radius(self) -> float:
        r"""The length of the longest token, $\max_{t,b}\sqrt{1 + \langle v_t, e_b\rangle}$.

        It is 1 with orthonormal embeddings.
        """
        bits = np.eye(self.task.sparsity + SPECIAL)[:, self.task.sparsity : -1]
        found = self.embedding.products(self.task.support, bits)[: self.task.length]
        return float(np.sqrt(1 + max(found.max(), 0.0)))

    def worst_margin(self) -> float:
        """The least output times the sign of the label, over all $2^T$ inputs.

        Every pattern of the relevant bits has the filling of the other places that harms it most.
        """
        signs = 2.0 * self.task.table - 1
        if self.relu:
            return float((signs * self._level_outputs()).min())
        low, high = self.range_of(self.mix @ self.out)
        return float(np.where(signs > 0, low, -high).min())

    def worst_error(self) -> float:
        """The largest distance of a staircase's output from the label's sign, over all inputs."""
        return float(abs(self._level_outputs() - (2.0 * self.task.table - 1)).max())

    def _level_outputs(self) -> Float[np.ndarray, "k patterns"]:
        """A staircase's outputs for each pattern at the ends of its levels and the corners between.

        Between these it is linear. What reads the constant does not depend on the bits, since the
        attention does not.
        """
        level, constant = np.eye(len(self.mix))[:2]
        low, high = self.range_of(level)
        ones = self.range_of(constant)[0]
        corners = -self.mix[1, 1:, None] * ones
        inside = np.clip(corners, low, high)
        levels = np.concatenate([[low, high], inside])
        units = np.stack([levels, np.broadcast_to(ones, levels.shape)], -1) @ self.mix
        return np.maximum(units, 0) @ self.out

    def range_of(
        self, column: Float[np.ndarray, " r"]
    ) -> tuple[Float[np.ndarray, " patterns"], Float[np.ndarray, " patterns"]]:
        r"""The least and largest `column`$\cdot$mixture over all fillings of the irrelevant places.

        The mixture is a ratio $N/D$ of sums over places, each with a choice of its own bit. Its
        least value $\lambda$ is the one at which the least $N - \lambda D$, a choice at each place
        by itself, is 0; iterating that is exact after a few rounds (Dinkelbach 1967).

        Returns: two arrays, each with one value for each pattern of the relevant bits.
        """
        weight, values, cls = self._tables
        relevant = np.zeros(self.task.length, bool)
        relevant[list(self.task.support)] = True
        chosen = patterns(self.task.sparsity).astype(int)
        support = list(self.task.support)
        worth = weight * (values @ column)
        fixed_worth = worth[chosen, support].sum(1) + cls[0] * (cls[1:] @ column)
        fixed_weight = weight[chosen, support].sum(1) + cls[0]
        weight, worth = weight[:, ~relevant], worth[:, ~relevant]

        def least(sign: float, worth0: float, weight0: float) -> float:
            value = sign * (worth0 + worth[0].sum()) / (weight0 + weight[0].sum())
            while True:
                bit = np.argmin(sign * worth - value * weight, 0)[None]
                total = weight0 + np.take_along_axis(weight, bit, 0).sum()
                lower = sign * (worth0 + np.take_along_axis(worth, bit, 0).sum()) / total
                if not lower < value - 1e-15 * abs(value):
                    return sign * value
                value = lower

        pairs = list(zip(fixed_worth, fixed_weight, strict=True))
        return np.array([least(1.0, *pair) for pair in pairs]), np.array(
            [least(-1.0, *pair) for pair in pairs]
        )

    @property
    def out_norm(self) -> float:
        """The length of `out`."""
        return float(np.linalg.norm(self.out))

    def module(self) -> attention.ReadOut:
        """The head as a module on tokens of dimension d, read at [CLS], with thin matrices.

        Weights are in double precision, which staircases of more than a few bits need: call it
        inside `jax.enable_x64(True)`.
        """
        anchors = np.sqrt(2) * self.embedding.anchors(self.task.support).T
        activation = jax.nn.relu if self.relu else attention.identity
        with jax.enable_x64(True):
            key, query, value, out = map(
                jnp.asarray,
                (
                    anchors @ self.score[:, None],
                    anchors[:, -1:],
                    anchors @ self.read @ self.mix,
                    self.out[:, None],
                ),
            )
            head = attention.TransformerHead(key, query, value, out, activation)
            return attention.ReadOut(
                attention.Layer(head), query[:, 0] / 2, jnp.ones(1), attend=self.attend
            )

    def embed(self, bits: ArrayLike) -> Float[np.ndarray, "*n length dim"]:
        r"""The tokens $(v_t + e_{b_t})/\sqrt2$; of size T d each, so for short contexts."""
        bits = self._check_bits(bits)
        size = bits.size * self.embedding.dim
        if size > 1 << 27:
            raise InputError(
                f"the tokens are {size:,} numbers: at most {1 << 27:,} are written out; the head"
                " itself needs none of them"
            )
        return (
            self.embedding.places(0, self.task.length) + self.embedding.special()[bits.astype(int)]
        ) / np.sqrt(2)

    def capacity(self, constant: str = "paper", *, count_parameters: bool = True) -> Capacity:
        """The bound for all heads with these norms, on tokens of this `radius`.

        Arguments:
            constant: of softmax, "paper" or "sharp".
            count_parameters: whether covers may count parameters, or must be free of the dimension.
        """
        return capacity_of(
            self.module(),
            self.task.length,
            radius=self.radius,
            constant=constant,
            count_parameters=count_parameters,
        )


Builder = Callable[..., Construction]


def _checked_embedding(task: SparseBoolean, embedding: Embedding | None) -> Embedding:
    embedding = Orthonormal(task.length) if embedding is None else embedding
    if embedding.length != task.length:
        raise InputError(f"the embedding has {embedding.length} places: the task has {task.length}")
    return embedding


def _solve_score(
    task: SparseBoolean,
    embedding: Embedding,
    base: np.ndarray,
    extra: np.ndarray,
    advantage: Callable[[np.ndarray, float], float],
    most: float = 1.0,
) -> np.ndarray:
    r"""The score $\beta\cdot$`base` + `extra` at the $\beta$ where `advantage` is 0.

    Arguments:
        base, extra: wanted inner products with the anchors.
        advantage: a function of the products with irrelevant places [T - s, 2] and of $\beta$.
        most: the largest product of `base` with an irrelevant place for which there is a head.
    """
    gram = embedding.gram(task.support)
    coefficients = np.linalg.solve(gram, np.column_stack([base, extra]))
    products = embedding.products(task.support, coefficients)
    others = np.delete(products[: task.length], task.support, axis=0)
    coherence = others[:, 0].max(initial=-np.inf)
    if coherence >= most:
        raise InputError(
            f"dim = {embedding.dim}: an irrelevant place has the product {coherence:.2f} with the"
            f" direction of the relevant ones, whose own is 1, and it must be below {most:g};"
            f" 4 s ln T = {4 * task.sparsity * np.log(task.length):.0f} dimensions or more will do"
            " for a threshold"
        )
    beta = scipy.optimize.brentq(
        lambda beta: advantage(others, beta), -50.0, 1e6, xtol=1e-13, rtol=1e-15
    )
    return coefficients @ np.array([beta, 1.0])


def _levels(
    task: SparseBoolean, offsets: np.ndarray, sharpness: float, embedding: Embedding | None
) -> tuple[Embedding, np.ndarray, np.ndarray, np.ndarray]:
    r"""Attention that does not depend on the bits, and what reads the level $\sum_t p_t b_t$.

    A relevant place with the offset 0 weighs c times as much as all irrelevant ones together,
    $e^\beta = c\sum_{t \notin I} e^{\beta n_t + m_t}$.

    Returns the embedding; the score; what reads the level and the constant 1, [anchors, 2]; and
    what the places add to the two, numbers that thresholds absorb.
    """
    if task.length <= task.sparsity:
        raise InputError(
            f"length = {task.length}: it must exceed the sparsity {task.sparsity}, or there is"
            " nothing to attend away from"
        )
    embedding = _checked_embedding(task, embedding)

    def advantage(others: np.ndarray, beta: float) -> float:
        return float(beta - special.logsumexp(others @ np.array([beta, 1.0])) - np.log(sharpness))

    base, extra = (np.append(x, np.zeros(SPECIAL)) for x in (np.ones(task.sparsity), offsets))
    score = _solve_score(task, embedding, base, extra, advantage)
    wanted = np.zeros((task.sparsity + SPECIAL, 2))
    wanted[-SPECIAL:-1] = [[0, 1], [1, 1]]
    read = np.linalg.solve(embedding.gram(task.support), wanted)
    found = embedding.products(task.support, np.column_stack([score, read]))[: task.length]
    return embedding, score, read, special.softmax(found[:, 0]) @ found[:, 1:]


@public
def threshold_head(
    task: SparseBoolean, *, sharpness: float = 2.0, embedding: Embedding | None = None
) -> Construction:
    r"""And, or, majority, any "at least $k_0$ ones": a value is the bit less a threshold.

    With orthonormal embeddings $u = \beta\sum_{i \in I} v_i$, $\beta = \ln c(T-s)$: each relevant
    place has attention $a = \frac{c}{sc+1}$, all others together $\frac1{sc+1}$, and k ones give a
    level between $ak$ and $ak + \frac1{sc+1}$. The margin $\frac{c-1}{2(sc+1)}$ is positive if and
    only if $c > 1$. $|u| = \sqrt{2s}\,\ln c(T-s)$ for unit tokens.

    Arguments:
        task: what the head computes. `sharpness`: $c$, above 1.
        embedding: of places and bits; `Orthonormal` unless given.

    >>> from attlas.sparse_variables import SparseBoolean, threshold_head
    >>> head = threshold_head(SparseBoolean(100, (3, 17, 40), "majority"), sharpness=2.0)
    >>> print(f"{head.margin:.4f} {head.score_norm:.2f} {head.value_norms.round(2)}")
    0.0714 12.90 [1.]
    """
    values = task.by_count()
    steps = np.flatnonzero(np.diff(values or ())) + 1
    if values is None or values[0] != 0 or len(steps) != 1:
        raise InputError(
            f"function = {task.function!r}: a threshold head computes 'at least k ones' only, as"
            " and, or and majority are"
        )
    s, c = task.sparsity, positive("sharpness", sharpness)
    embedding, score, read, added = _levels(task, np.zeros(s), c, embedding)
    each, leak = c / (s * c + 1), 1 / (s * c + 1)
    middle = each * (steps[0] - 1) + (each + leak) / 2
    threshold = (middle + added[0]) / (1 + added[1])
    mix = np.array([[1.0], [-threshold]])
    return Construction(
        task, embedding, c, score, read, mix, np.ones(1), (each - leak) / 2, threshold_head
    )


@public
def sink_head(
    task: SparseBoolean, *, sharpness: float = 4.0, embedding: Embedding | None = None
) -> Construction:
    r"""And, or with a margin independent of s.

    Attention goes to a relevant bit that decides, and to [CLS] if there is none. For and: a
    relevant 0 scores $2\beta$, [CLS] $\frac32\beta$, a relevant 1 or another 0 $\beta$,
    another 1 nothing; $\beta = 2\ln cT$. [CLS] has the value 1, any bit -1. The margin is
    $\frac{c-1}{c+1}$ with orthonormal embeddings; $|u| = \beta\sqrt{2s + 6.5}$ for unit tokens. For
    or the bits change places.

    Arguments:
        others: as in `threshold_head`.

    >>> from attlas.sparse_variables import SparseBoolean, sink_head
    >>> head = sink_head(SparseBoolean(50, (1, 2, 3, 4), "or"), sharpness=4.0)
    >>> print(f"{head.margin:.2f}")
    0.60
    """
    counts, conjunction = task.by_count(), (*[0] * task.sparsity, 1)
    if counts not in (conjunction, (0, *[1] * task.sparsity)):
        raise InputError(f"function = {task.function!r}: a sink head computes and, or")
    s, c = task.sparsity, positive("sharpness", sharpness)
    embedding = _checked_embedding(task, embedding)
    decides = [1.0, 0.0] if counts == conjunction else [0.0, 1.0]
    base = np.array([1.0] * s + decides + [1.5])

    def advantage(others: np.ndarray, beta: float) -> float:
        """Zero where [CLS] outweighs the tokens c times, none of them deciding."""
        tokens = np.append(np.full(s, beta), beta * (1 + others[:, 0]))
        return float(1.5 * beta - special.logsumexp(tokens) - np.log(c))

    score = _solve_score(task, embedding, base, 0 * base, advantage, most=0.5)
    sign = 1.0 if counts == conjunction else -1.0
    wanted = np.append(np.zeros(s), [-sign, -sign, sign])
    read = np.linalg.solve(embedding.gram(task.support), wanted[:, None])
    built = Construction(
        task, embedding, c, score, read, np.ones((1, 1)), np.ones(1), 0.0, sink_head, attend=True
    )
    return replace(built, margin=built.worst_margin())


@public
def symmetric_head(
    task: SparseBoolean, *, sharpness: float = 2.0, embedding: Embedding | None = None
) -> Construction:
    r"""Any function of the number of ones, parity among them, with values -1 and 1 exactly.

    It has the levels of `threshold_head`, and a staircase of 2s ReLUs whose steps rise where no
    level lies. Norms grow like a power of s: for parity
    $|\text{out}| \approx 2\sqrt{2s}\,\frac{sc+1}{c-1}$.

    Arguments:
        others: as in `threshold_head`.

    >>> from attlas.sparse_variables import SparseBoolean, symmetric_head
    >>> head = symmetric_head(SparseBoolean(20, (0, 5, 9), "parity"))
    >>> print(f"{head.margin:.3f} {head.out_norm:.1f}")
    1.000 34.3
    """
    values = task.by_count()
    if values is None:
        raise InputError(
            f"function = {task.function!r}: it is not symmetric, so that the number of ones does"
            " not decide it"
        )
    return _staircase(symmetric_head, task, np.zeros(task.sparsity), values, sharpness, embedding)


@public
def table_head(
    task: SparseBoolean, *, sharpness: float = 2.0, embedding: Embedding | None = None
) -> Construction:
    r"""Any function, with values -1 and 1 exactly.

    Relevant place j has $2^{j-1}$ times the attention of the first, so that the level is the code
    of the pattern, and a staircase with a step for each pattern reads it. Norms grow like
    $2^{3s/2}$.

    Arguments:
        others: as in `threshold_head`.

    >>> from attlas.sparse_variables import RandomDirections, SparseBoolean, table_head
    >>> task = SparseBoolean(20, (0, 5), (0, 1, 0, 0))
    >>> head = table_head(task, embedding=RandomDirections(20, dim=2000))
    >>> print(head.margin > 0)
    True
    """
    offsets = np.arange(task.sparsity) * np.log(2)
    return _staircase(table_head, task, offsets, task.table.tolist(), sharpness, embedding)


def _staircase(
    builder: Builder,
    task: SparseBoolean,
    offsets: np.ndarray,
    values: Sequence[int],
    sharpness: float,
    embedding: Embedding | None,
) -> Construction:
    """The function with `values` at the levels of attention with these `offsets` of the scores."""
    if not positive("sharpness", sharpness) > 1:
        raise InputError(f"sharpness = {sharpness:g}: it must exceed 1, or levels overlap")
    embedding, score, read, added = _levels(task, offsets, sharpness, embedding)
    total = sharpness * np.exp(offsets).sum() + 1
    levels = sharpness / total * np.arange(len(values))
    signs = 2.0 * np.asarray(values) - 1
    jumps = np.diff(signs)
    rises = np.flatnonzero(jumps)
    low, high = levels[rises] + 1 / total, levels[rises + 1]
    slopes = jumps[rises] / (high - low)
    # A unit of the constant alone, then for each step one ReLU that starts it and one that ends it.
    corners = (np.concatenate([low, high]) + added[0]) / (1 + added[1])
    mix = np.concatenate([[[0.0], [1.0]], np.stack([np.ones_like(corners), -corners])], 1)
    out = np.concatenate([[signs[0] / (1 + added[1])], slopes, -slopes])
    return Construction(task, embedding, sharpness, score, read, mix, out, 1.0, builder, relu=True)


@public
def head_for(
    task: SparseBoolean, *, sharpness: float = 2.0, embedding: Embedding | None = None
) -> Construction:
    """The simplest construction that computes `task`: threshold, else symmetric, else by table.

    Arguments:
        others: as in `threshold_head`.

    >>> import jax
    >>> from attlas.sparse_variables import Orthonormal, SparseBoolean, head_for
    >>> task = SparseBoolean(30, (2, 7, 11), "and")
    >>> head = head_for(task, embedding=Orthonormal(30))
    >>> batch = task.sample(jax.random.key(0), 500)
    >>> bool((head.predict(batch.bits) == batch.label).all())
    True
    """
    values = task.by_count()
    if values is None:
        build: Builder = table_head
    elif sorted(values) == list(values) and len(set(values)) == 2:
        build = threshold_head
    else:
        build = symmetric_head
    return build(task, sharpness=sharpness, embedding=embedding)
