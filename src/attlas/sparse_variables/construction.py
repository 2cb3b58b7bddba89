r"""Heads that provably compute sparse functions: weights, margins and norms in closed form (Edelman et al. 2022, Section 4).

A bit at place t is the token $x_t = (v_t + e_{b_t})/\sqrt2$. All weights lie in the span of the embeddings of the relevant places, of
the two bits and of [CLS], and are given by the inner products that they must have with these: $\beta$ with the relevant places, 0 with
the bits, and so on. With orthonormal embeddings they have none with other places. With random ones they have a little, which the
sharpness of the attention makes up for, so that thresholds and staircases have the same margins and only larger norms.

A head sees a sequence through these products alone: T + 2 numbers instead of a product of dimension d for each token.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import ArrayLike, Float
from scipy import special

from attlas import attention
from attlas.capacity import Capacity, HeadNorms, class_of, collapsed_head, head_block, read_out
from attlas.errors import InputError, positive, whole
from attlas.sparse_variables.task import SparseBoolean, patterns

SPECIAL = 3
"""The embeddings beside those of the places: bit 0, bit 1, [CLS]."""
CHUNK = 4096
"""Places that are looked at together; fixed, because its number enters the random key of their embeddings."""

KEPT = 1 << 23
"""Numbers that an embedding keeps; a larger one is drawn again, chunk by chunk, whenever it is looked at."""


class Embedding(ABC):
    """Unit vectors for T places, two bits and [CLS]."""

    length: int
    dim: int

    @abstractmethod
    def special(self) -> Float[np.ndarray, "3 dim"]:
        """The vectors of bit 0, bit 1 and [CLS]."""

    @abstractmethod
    def places(self, first: int, last: int) -> Float[np.ndarray, "n dim"]:
        """The vectors of the places `first`, ..., `last` - 1."""

    def anchors(self, support: Sequence[int]) -> Float[np.ndarray, "anchors dim"]:
        """The vectors of the places of `support` and the three special ones: what weights are made of."""
        return np.concatenate([*(self.places(i, i + 1) for i in support), self.special()])

    def gram(self, support: Sequence[int]) -> Float[np.ndarray, "anchors anchors"]:
        anchors = self.anchors(support)
        return anchors @ anchors.T

    def products(
        self, support: Sequence[int], coefficients: Float[np.ndarray, "anchors n"]
    ) -> Float[np.ndarray, "rows n"]:
        """Inner products of combinations of the anchors with every place and the special vectors."""
        weights = self.anchors(support).T @ coefficients
        chunks = [
            self.places(i, min(i + CHUNK, self.length)) @ weights
            for i in range(0, self.length, CHUNK)
        ]
        return np.concatenate([*chunks, self.special() @ weights])


@dataclass(frozen=True)
class Orthonormal(Embedding):
    """The standard basis of dimension T + 3; never written out unless asked for."""

    length: int

    def __post_init__(self) -> None:
        whole("length", self.length, 1)

    @property
    def dim(self) -> int:  # type: ignore[override]
        return self.length + SPECIAL

    def special(self) -> Float[np.ndarray, "3 dim"]:
        return np.eye(SPECIAL, self.dim, self.length)

    def places(self, first: int, last: int) -> Float[np.ndarray, "n dim"]:
        return np.eye(last - first, self.dim, first)

    def gram(self, support: Sequence[int]) -> Float[np.ndarray, "anchors anchors"]:
        return np.eye(len(support) + SPECIAL)

    def products(
        self, support: Sequence[int], coefficients: Float[np.ndarray, "anchors n"]
    ) -> Float[np.ndarray, "rows n"]:
        found = np.zeros((self.length + SPECIAL, coefficients.shape[1]))
        found[[*support, *range(self.length, self.length + SPECIAL)]] = coefficients
        return found


@dataclass(frozen=True)
class RandomDirections(Embedding):
    """Independent uniform directions of dimension `dim`, from `seed`. Products between them are of size $1/\\sqrt{d}$."""

    length: int
    dim: int
    seed: int = 0

    def __post_init__(self) -> None:
        whole("length", self.length, 1), whole("dim", self.dim, 2)

    def _drawn(self, block: int, rows: int) -> Float[np.ndarray, "rows dim"]:
        draws = np.random.Generator(np.random.Philox(key=[self.seed, block])).standard_normal(
            (rows, self.dim)
        )
        return draws / np.linalg.norm(draws, axis=1, keepdims=True)

    def special(self) -> Float[np.ndarray, "3 dim"]:
        return self._drawn(0, SPECIAL)

    @functools.cached_property
    def _kept(self) -> Float[np.ndarray, "length dim"]:
        return np.concatenate([self._block(block) for block in range(-(-self.length // CHUNK))])

    def _block(self, block: int) -> Float[np.ndarray, "n dim"]:
        return self._drawn(1 + block, min(CHUNK, self.length - block * CHUNK))

    def places(self, first: int, last: int) -> Float[np.ndarray, "n dim"]:
        if self.length * self.dim <= KEPT:
            return self._kept[first:last]
        blocks = range(first // CHUNK, -(-last // CHUNK))
        rows = np.concatenate([self._block(block) for block in blocks])
        return rows[first - blocks[0] * CHUNK :][: last - first]


@dataclass(frozen=True, eq=False, repr=False)
class Construction:
    r"""A head that computes a sparse function: $f(b) = \text{out}^\top\sigma\big(\text{mix}^\top\sum_t p_t\,\text{read}(x_t)\big)$, the sign being the label.

    `score` [s+3] and `read` [s+3, r] are combinations of the anchors (relevant places, bits, [CLS]); `mix` [r, k] makes the k
    value units of them and `out` [k] reads those, through a ReLU if `relu`. `margin` is the least $|f|$ over all inputs, negative if
    some input is misjudged; `sharpness` is the c of the formulas. With `attend`, [CLS] is a key too.
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
            f"{self.builder.__name__}({self.task}, sharpness={self.sharpness:g}, embedding={self.embedding}): {len(self.out)} value units,"
            f" margin {self.margin:.4g}, norm of the scores {self.score_norm:.4g}, of the read-out {self.out_norm:.4g}"
        )

    @functools.cached_property
    def _tables(
        self,
    ) -> tuple[
        Float[np.ndarray, "2 length"],
        Float[np.ndarray, "2 length r"],
        Float[np.ndarray, " columns"],
    ]:
        r"""Weights $e^{score}$ and values of each (bit, place), relative to the largest weight, and of [CLS]."""
        columns = np.column_stack([self.score, self.read])
        found = self.embedding.products(self.task.support, columns)
        places, bits, cls = found[:-SPECIAL], found[-SPECIAL:-1], found[-1]
        table = places[None] + bits[:, None]
        top = max(table[..., 0].max(), cls[0] if self.attend else -np.inf)
        weight = np.exp(table[..., 0] - top)
        own = np.append(np.exp(cls[0] - top) if self.attend else 0.0, cls[1:])
        return weight, table[..., 1:], own

    def mixture(self, bits: ArrayLike) -> Float[np.ndarray, "*n r"]:
        r"""$\sum_t p_t\,\text{read}(x_t)$ for sequences of bits, from tables: one product a chunk of places."""
        bits = self._checked(bits)
        weight, values, cls = self._tables
        columns = (
            np.concatenate([np.ones((2, self.task.length, 1)), values], -1) * weight[..., None]
        )
        total = cls[0] * np.append(1.0, cls[1:]) + np.zeros((*bits.shape[:-1], 1))
        for i in range(0, self.task.length, CHUNK):
            part, here = bits[..., i : i + CHUNK].astype(float), columns[:, i : i + CHUNK]
            total = total + (1 - part) @ here[0] + part @ here[1]
        return total[..., 1:] / total[..., :1]

    def weights(self, bits: ArrayLike) -> Float[np.ndarray, "*n keys"]:
        """The attention on each place, and last on [CLS]."""
        bits = self._checked(bits)
        weight, _, cls = self._tables
        powers = np.where(bits == 1, weight[1], weight[0])
        powers = np.concatenate([powers, np.full((*bits.shape[:-1], 1), cls[0])], -1)
        return powers / powers.sum(-1, keepdims=True)

    def __call__(self, bits: ArrayLike) -> Float[np.ndarray, "*n"]:
        """The head's output on sequences of bits [*n, length]."""
        units = self.mixture(bits) @ self.mix
        return (np.maximum(units, 0) if self.relu else units) @ self.out

    def predict(self, bits: ArrayLike) -> np.ndarray:
        """The label that the head gives, 0 or 1."""
        return (self(bits) > 0).astype(np.uint8)

    def _checked(self, bits: ArrayLike) -> np.ndarray:
        bits = np.asarray(bits)
        if bits.shape[-1:] != (self.task.length,):
            raise InputError(
                f"bits have the shape {bits.shape}: the last axis must be {self.task.length} long"
            )
        if not np.isin(bits, (0, 1)).all():
            raise InputError(
                f"bits have the value {bits[~np.isin(bits, (0, 1))][0]!r}: they must be 0 or 1"
            )
        return bits

    # --- as a module ---

    @functools.cached_property
    def score_norm(self) -> float:
        r"""$|u|$, for tokens of unit length: the inner products are those of $\sqrt2$ times the combination."""
        return self._norm(self.score)

    def _norm(self, coefficients: np.ndarray) -> float:
        return float(
            np.sqrt(2 * coefficients @ self.embedding.gram(self.task.support) @ coefficients)
        )

    @functools.cached_property
    def value_norms(self) -> Float[np.ndarray, " k"]:
        """The length of each value unit, for tokens of unit length."""
        gram = self.embedding.gram(self.task.support)
        units = self.read @ self.mix
        return np.sqrt(2 * np.einsum("ik,ij,jk->k", units, gram, units))

    @functools.cached_property
    def radius(self) -> float:
        r"""The length of the longest token, $\max_{t,b}\sqrt{1 + \langle v_t, e_b\rangle}$: 1 with orthonormal embeddings."""
        bits = np.eye(self.task.sparsity + SPECIAL)[:, self.task.sparsity : -1]
        found = self.embedding.products(self.task.support, bits)[: self.task.length]
        return float(np.sqrt(1 + max(found.max(), 0.0)))

    @property
    def value_spectral(self) -> float:
        """The spectral norm of the matrix of value units, for tokens of unit length."""
        root = np.linalg.cholesky(self.embedding.gram(self.task.support)).T
        return float(np.sqrt(2) * np.linalg.norm(root @ self.read @ self.mix, 2))

    def worst_margin(self) -> float:
        """The least output, times the sign of the label, over all inputs: every pattern of the relevant bits with the filling of the
        other places that does most harm to it."""
        signs = 2.0 * self.task.table - 1
        if self.relu:
            return float((signs * self._at_levels()).min())
        low, high = self.range_of(self.mix @ self.out)
        return float(np.where(signs > 0, low, -high).min())

    def worst_error(self) -> float:
        """The largest distance of the output from the sign of the label, over all inputs; for staircases, which give the signs themselves."""
        return float(abs(self._at_levels() - (2.0 * self.task.table - 1)).max())

    def _at_levels(self) -> Float[np.ndarray, "k patterns"]:
        """The output of a staircase for each pattern at the ends of its range of levels and at the corners that lie inside; between
        these it is linear. The reading of the constant does not depend on the bits, since the attention does not."""
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
        r"""The least and the largest value of a combination of the mixture for each pattern of the relevant bits, over all fillings of
        the other places.

        The mixture is a ratio $N/D$ of sums over places, each with a choice of its own bit. Its least value $\lambda$ is the one at which
        the least $N - \lambda D$, a choice at each place by itself, is 0; iterating that is exact after a few rounds (Dinkelbach 1967).
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
        return float(np.linalg.norm(self.out))

    def module(self) -> attention.ReadOut:
        """The head as a module on tokens of dimension d, read at [CLS]: key, query and value matrices are thin.

        Weights are in double precision, which staircases of more than a few bits need: call it inside `jax.enable_x64(True)`."""
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
        bits = self._checked(bits)
        size = bits.size * self.embedding.dim
        if size > 1 << 27:
            raise InputError(
                f"the tokens are {size:,} numbers: at most {1 << 27:,} are written out; the head itself needs none of them"
            )
        return (
            self.embedding.places(0, self.task.length) + self.embedding.special()[bits.astype(int)]
        ) / np.sqrt(2)

    def capacity(self, constant: str = "paper", *, count_parameters: bool = True) -> Capacity:
        """The bound for all heads with these norms; without `count_parameters`, by covers that know no dimension."""
        tokens, dim = self.task.length + self.attend, self.embedding.dim
        if self.relu:
            norms = HeadNorms(
                value=self.value_spectral,
                value_21=self.value_norms.sum(),
                query_key=np.sqrt(2) * self.score_norm,
                query_key_21=np.sqrt(2) * self.score_norm,
                out=self.out_norm,
                out_21=self.out_norm,
                dim=dim,
                width=len(self.out),
                out_dim=1,
                score=self.score_norm,
            )
            found = read_out(head_block(norms, tokens, constant), 1.0, self.radius, out_dim=1)
        else:
            value = self._norm(self.read @ self.mix @ self.out)
            found = class_of(
                collapsed_head(self.score_norm, value, tokens, dim, constant), self.radius
            )
        return found if count_parameters else found.dimension_free()

    def samples_scaling(
        self,
        gap: float = 0.5,
        delta: float = 0.05,
        constant: str = "paper",
        *,
        count_parameters: bool = False,
    ) -> dict[str, float]:
        """Exponents of the samples that the bound asks for, in the length and in the sparsity: from this head to the one of the same
        kind for twice the length, and for one relevant place more where the function has a name. Orthonormal embeddings."""

        def asked(task: SparseBoolean) -> float:
            head = self.builder(task, sharpness=self.sharpness)
            capacity = head.capacity(constant, count_parameters=count_parameters)
            return float(capacity.log_samples_for(gap, margin=head.margin, delta=delta))

        here, task = asked(self.task), self.task
        longer = replace(task, length=2 * task.length)
        found = {"length": (asked(longer) - here) / np.log(2)}
        if isinstance(task.function, str):
            free = next(i for i in range(longer.length) if i not in task.support)
            wider = SparseBoolean(longer.length, (*task.support, free), task.function)
            found["sparsity"] = (asked(wider) - asked(longer)) / np.log(
                (task.sparsity + 1) / task.sparsity
            )
        return {name: float(value) for name, value in found.items()}


Builder = Callable[..., Construction]


def _embedding(task: SparseBoolean, embedding: Embedding | None) -> Embedding:
    embedding = Orthonormal(task.length) if embedding is None else embedding
    if embedding.length != task.length:
        raise InputError(f"the embedding has {embedding.length} places: the task has {task.length}")
    return embedding


def _sharp(
    task: SparseBoolean,
    embedding: Embedding,
    base: np.ndarray,
    extra: np.ndarray,
    advantage: Callable[[np.ndarray, float], float],
    most: float = 1.0,
) -> np.ndarray:
    r"""The score $\beta\cdot$`base` + `extra`, both as wanted products with the anchors, with the $\beta$ at which `advantage`(products, $\beta$) is 0."""
    gram = embedding.gram(task.support)
    coefficients = np.linalg.solve(gram, np.column_stack([base, extra]))
    products = embedding.products(task.support, coefficients)
    others = np.delete(products[: task.length], task.support, axis=0)
    coherence = others[:, 0].max(initial=-np.inf)
    if coherence >= most:
        raise InputError(
            f"dim = {embedding.dim}: an irrelevant place has the product {coherence:.2f} with the direction of the relevant ones, whose own is"
            f" 1, and it must be below {most:g}; 4 s ln T = {4 * task.sparsity * np.log(task.length):.0f} dimensions or more will do for a threshold"
        )
    beta = scipy.optimize.brentq(
        lambda beta: advantage(others, beta), -50.0, 1e6, xtol=1e-13, rtol=1e-15
    )
    return coefficients @ np.array([beta, 1.0])


def _outweighs(sharpness: float) -> Callable[[np.ndarray, float], float]:
    r"""Zero where $e^\beta = c\sum_{t \notin I} e^{\beta n_t + m_t}$: a relevant place weighs c times as much as all irrelevant ones."""

    def advantage(others: np.ndarray, beta: float) -> float:
        return float(beta - special.logsumexp(others @ np.array([beta, 1.0])) - np.log(sharpness))

    return advantage


def _needs_others(task: SparseBoolean) -> None:
    if task.length <= task.sparsity:
        raise InputError(
            f"length = {task.length}: it must exceed the sparsity {task.sparsity}, or there is nothing to attend away from"
        )


def _level_reader(
    task: SparseBoolean, embedding: Embedding, score: np.ndarray
) -> tuple[Float[np.ndarray, "anchors 2"], Float[np.ndarray, " 2"]]:
    r"""What reads the level $\sum_t p_t b_t$ and the constant 1 from a mixture, and what irrelevant places add to the two.

    The attention does not depend on the bits here, so that what their embeddings add is a number, which thresholds absorb.
    """
    wanted = np.zeros((task.sparsity + SPECIAL, 2))
    wanted[-SPECIAL:-1] = [[0, 1], [1, 1]]
    read = np.linalg.solve(embedding.gram(task.support), wanted)
    found = embedding.products(task.support, np.column_stack([score, read]))[: task.length]
    return read, special.softmax(found[:, 0]) @ found[:, 1:]


def threshold_head(
    task: SparseBoolean, *, sharpness: float = 2.0, embedding: Embedding | None = None
) -> Construction:
    r"""And, or, majority, any "at least $k_0$ ones": attention on the relevant places, the value being the bit less a threshold.

    With orthonormal embeddings $u = \beta\sum_{i \in I} v_i$, $\beta = \ln c(T-s)$: each relevant place has attention $a = \frac{c}{sc+1}$, all others
    together $\frac1{sc+1}$, and k ones give a level between $ak$ and $ak + \frac1{sc+1}$. The margin $\frac{c-1}{2(sc+1)}$ is positive if and only if
    $c > 1$. $|u| = \sqrt{2s}\,\ln c(T-s)$ for unit tokens.
    """
    values = task.by_count()
    steps = (
        ()
        if values is None
        else tuple(k for k in range(1, task.sparsity + 1) if values[k] != values[k - 1])
    )
    if values is None or values[0] != 0 or len(steps) != 1:
        raise InputError(
            f"function = {task.function!r}: a threshold head computes 'at least k ones' only, as and, or and majority are"
        )
    _needs_others(task)
    s, c, embedding = task.sparsity, positive("sharpness", sharpness), _embedding(task, embedding)
    base = np.append(np.ones(s), np.zeros(SPECIAL))
    score = _sharp(task, embedding, base, 0 * base, _outweighs(c))
    read, added = _level_reader(task, embedding, score)
    each, leak = c / (s * c + 1), 1 / (s * c + 1)
    middle = each * (steps[0] - 1) + (each + leak) / 2
    threshold = (middle + added[0]) / (1 + added[1])
    mix = np.array([[1.0], [-threshold]])
    return Construction(
        task, embedding, c, score, read, mix, np.ones(1), (each - leak) / 2, threshold_head
    )


def sink_head(
    task: SparseBoolean, *, sharpness: float = 4.0, embedding: Embedding | None = None
) -> Construction:
    r"""And, or with a margin that does not know s: attention goes to a relevant bit that decides, and to [CLS] if there is none.

    For and: a relevant 0 scores $2\beta$, [CLS] $\frac32\beta$, a relevant 1 or another 0 $\beta$, another 1 nothing; $\beta = 2\ln cT$. [CLS] has the value 1, any
    bit -1. The margin is $\frac{c-1}{c+1}$ with orthonormal embeddings; $|u| = \beta\sqrt{2s + 6.5}$ for unit tokens. For or the bits change places.
    """
    ones = sum(task.by_count() or ())
    if (
        ones not in (1, task.sparsity)
        or (task.by_count() or (1,))[0]
        or not (task.by_count() or (0,))[-1]
    ):
        raise InputError(f"function = {task.function!r}: a sink head computes and, or")
    conjunction = ones == 1
    s, c, embedding = task.sparsity, positive("sharpness", sharpness), _embedding(task, embedding)
    decides = [1.0, 0.0] if conjunction else [0.0, 1.0]
    base = np.array([1.0] * s + decides + [1.5])

    def advantage(others: np.ndarray, beta: float) -> float:
        """Zero where [CLS] outweighs the tokens c times, none of them deciding."""
        tokens = np.append(np.full(s, beta), beta * (1 + others[:, 0]))
        return float(1.5 * beta - special.logsumexp(tokens) - np.log(c))

    score = _sharp(task, embedding, base, 0 * base, advantage, most=0.5)
    sign = 1.0 if conjunction else -1.0
    wanted = np.append(np.zeros(s), [-sign, -sign, sign])
    read = np.linalg.solve(embedding.gram(task.support), wanted[:, None])
    built = Construction(
        task, embedding, c, score, read, np.ones((1, 1)), np.ones(1), 0.0, sink_head, attend=True
    )
    return replace(built, margin=built.worst_margin())


def symmetric_head(
    task: SparseBoolean, *, sharpness: float = 2.0, embedding: Embedding | None = None
) -> Construction:
    r"""Any function of the number of ones, parity among them, with values -1 and 1 exactly: the levels of `threshold_head`, and a
    staircase of 2s ReLUs whose steps rise where no level lies. Norms grow like a power of s: for parity $|\text{out}| \approx 2\sqrt{2s}\,\frac{sc+1}{c-1}$."""
    values = task.by_count()
    if values is None:
        raise InputError(
            f"function = {task.function!r}: it is not symmetric, so that the number of ones does not decide it"
        )
    return _staircase(symmetric_head, task, np.zeros(task.sparsity), values, sharpness, embedding)


def table_head(
    task: SparseBoolean, *, sharpness: float = 2.0, embedding: Embedding | None = None
) -> Construction:
    r"""Any function, with values -1 and 1 exactly: relevant place j has $2^{j-1}$ times the attention of the first, so that the level is the
    code of the pattern, and a staircase with a step for each pattern reads it. Norms grow like $2^{3s/2}$."""
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
    """The function with `values` at the levels that attention with these `offsets` of the scores has."""
    if not positive("sharpness", sharpness) > 1:
        raise InputError(f"sharpness = {sharpness:g}: it must exceed 1, or levels overlap")
    _needs_others(task)
    embedding = _embedding(task, embedding)
    base = np.append(np.ones(task.sparsity), np.zeros(SPECIAL))
    score = _sharp(
        task, embedding, base, np.append(offsets, np.zeros(SPECIAL)), _outweighs(sharpness)
    )
    read, added = _level_reader(task, embedding, score)
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


def head_for(
    task: SparseBoolean, *, sharpness: float = 2.0, embedding: Embedding | None = None
) -> Construction:
    """The simplest construction that computes `task`: threshold, else symmetric, else by table."""
    values = task.by_count()
    if values is None:
        build: Builder = table_head
    else:
        build = (
            threshold_head
            if sorted(values) == list(values) and len(set(values)) == 2
            else symmetric_head
        )
    return build(task, sharpness=sharpness, embedding=embedding)
