"""What a norm bound says about a transformer, and which of its factors says it.

    python examples/bound.py            # or with the knobs: --length 5000 --depth 6 --scale 0.5

Three questions.

1. How many samples does the theory ask for before a head that computes the "and" of three of T bits
generalises? We build
   that head, read its norms off, and look at the same question through four bounds. The first knows
   no dimension and grows like a power of ln T, as the theorem says; its constants are astronomical.
   The second counts parameters: far smaller, but with a direction of its own for every place it
   grows like T. The third counts them where the embedding has 4 s ln T random
   dimensions: small and slow. Occam's bound knows what the heads do not, that only C(T, 3)
   functions are in question.
2. Which weight of a deep model is to blame? Each term of the bound is how far one weight matrix can
move the output; what a layer
   does is multiplied by the Lipschitz constants of those above it.
3. Does the bound know the length? Counting parameters it does not at all. The covers of the
theorem, which know norms alone, have a
   logarithm of it in them: its exponent is printed beside.
"""

import click
import jax
import jax.numpy as jnp
import numpy as np

from attlas.attention import Layer, Projected, ReadOut, Residual, Stack, random_head
from attlas.capacity import capacity_of, occam_samples
from attlas.errors import InputError
from attlas.sparse_variables import RandomDirections, SparseBoolean, threshold_head


def samples_for_and(length: int) -> dict[str, float]:
    """Samples until the bound on the excess error is a half, for the "and" of three of so many
    bits, by four bounds."""
    task = SparseBoolean(length, (0, length // 2, length - 1), "and")
    basis = threshold_head(task)
    drawn = threshold_head(task, embedding=RandomDirections(length, round(12 * np.log(length))))
    return {
        "no dimension": basis.capacity("sharp", count_parameters=False).samples_for(
            0.5, margin=basis.margin
        ),
        "parameters, d = T + 3": basis.capacity("sharp").samples_for(0.5, margin=basis.margin),
        "parameters, d = 12 ln T": drawn.capacity("sharp").samples_for(0.5, margin=drawn.margin),
        "Occam": float(occam_samples(task.log_hypotheses, 0.5)),
        "statistical floor": float(task.floor()),
    }


def deep_model(depth: int, dim: int, scale: float) -> ReadOut:
    """A stack of residual layers, each projected on the unit ball as layer norm would, read at
    [CLS]."""
    keys = jax.random.split(jax.random.key(0), depth)
    blocks = [Projected(Residual(Layer(random_head(key, dim, scale=scale)))) for key in keys]
    return ReadOut(Stack(tuple(blocks)), jnp.ones(dim) / np.sqrt(dim), jnp.ones(dim) / np.sqrt(dim))


@click.command()
@click.option("--length", default=1000, show_default=True, help="Tokens in a sequence.")
@click.option("--depth", default=3, show_default=True, help="Layers.")
@click.option("--dim", default=16, show_default=True, help="Width of a token.")
@click.option("--scale", default=0.5, show_default=True, help="Size of the random weights.")
def main(length: int, depth: int, dim: int, scale: float) -> None:
    try:
        print(f"Samples for the and of three bits among {length:,}, and among twice as many:")
        once, twice = samples_for_and(length), samples_for_and(2 * length)
        for name, value in once.items():
            print(f"  {name:26} {value:10.3g}   x {twice[name] / value:.2f}")
        capacity = capacity_of(deep_model(depth, dim, scale), length, constant="sharp")
        print(
            f"\nA model of {depth} layers, on 10,000 sequences of {length:,} unit tokens, at a"
            f" tenth of its reach:\n"
        )
        print(capacity.report(0.1 * float(np.exp(capacity.log_reach)), 10_000))
        scaling = capacity.dimension_free().scaling(0.1 * float(np.exp(capacity.log_reach)), 10_000)
        print(
            f"by norms alone, without counting parameters: exponent {scaling['length']:.3g} in the"
            f" length"
        )
        bound = capacity.risk_bound(10_000, margin=0.1)
        print(
            f"\nbound on the excess error at margin 0.1:"
            f" {bound.value:.3g}{', vacuous' if bound.vacuous else ''}"
        )
    except InputError as error:
        raise click.UsageError(str(error)) from error


if __name__ == "__main__":
    main()
