"""Write the tables that explorers read from: `NAME.json` in the folder `pages` of their maps.

They are stored because they take a minute, and do not depend on the machine.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import special

from attlas.atlas.explorers import Explorer
from attlas.atlas.notes import notes_of
from attlas.capacity import Capacity, class_of, collapsed_head
from attlas.claims import catalogue
from attlas.sparse_variables.embedding import SPECIAL
from attlas.sparse_variables.task import FUNCTIONS

GAP, DELTA = 0.5, 0.05
"""The generalisation gap that the bound must stay below, and the probability that it may not."""


def find_explorer(name: str) -> Explorer:
    notes = notes_of(catalogue().values()).values()
    return next(each for part in notes for each in part.explorers if each.name == name)


def scattered_tokens(count: int, temperature: float, noise: float, seed: int = 3) -> dict[str, Any]:
    r"""Keys on the circle, more of them in front than behind, with values $f(k) + s\,N(0, 1)$ where
    s is the `noise`.

    The truth $f$ is a draw of the Gaussian process whose kernel is that of softmax attention at the
    `temperature` $\tau$, so that CME attention with it and the ridge $s^2$ is the posterior mean:
    $e^{(\cos\delta - 1)/\tau} = \sum_j c_j\cos j\delta$ with $c_0 = e^{-1/\tau}I_0(1/\tau)$ and
    $c_j = 2e^{-1/\tau}I_j(1/\tau)$.
    """
    draws = np.random.default_rng(seed)
    angles = draws.uniform(-np.pi, np.pi, 4 * count)
    keys = angles[draws.uniform(0, 2, len(angles)) < 1 + 0.9 * np.cos(angles)][:count]
    orders = np.arange(30)
    scales = np.sqrt(np.where(orders == 0, 1, 2) * special.ive(orders, 1 / temperature))
    cosines, sines = scales * draws.standard_normal((2, len(orders)))

    def truth(x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        return np.cos(np.outer(x, orders)) @ cosines + np.sin(np.outer(x, orders)) @ sines

    values = truth(keys) + noise * draws.standard_normal(len(keys))
    grid = np.linspace(-np.pi, np.pi, 361)
    return {
        "keys": keys.round(5).tolist(),
        "values": values.round(5).tolist(),
        "truth": truth(grid).round(5).tolist(),
        "noise": noise,
        "temperature": temperature,
    }


def sample_tables(
    functions: Sequence[str],
    places: Sequence[int],
    sparsities: Sequence[int],
    sharpnesses: Sequence[float],
) -> dict[str, Any]:
    """Samples that the bound asks for, as logarithms to base 10: from so many on, the bound for all
    heads with the norms of `threshold_head` is below `GAP` with probability 1 - `DELTA`.

    The tables are [function][length][sparsity][sharpness], with None where the head has no margin;
    "norms" is the bound by norms alone, "parameters" the one that also counts parameters.
    """
    length, s = np.array(places)[:, None, None], np.array(sparsities)[:, None]
    c = np.array([c for c in sharpnesses if c > 1])
    needed = np.stack(
        [
            [sum(not FUNCTIONS[name](j, s) for j in range(s)) for s in sparsities]
            for name in functions
        ]
    )
    each, leak = c / (s * c + 1), 1 / (s * c + 1)
    threshold = each * (needed[:, None, :, None] - 1) + (each + leak) / 2
    score = np.sqrt(2 * s) * np.log(c * (length - s))
    value = np.sqrt(2 * (threshold**2 + (1 - threshold) ** 2))
    capacity = class_of(collapsed_head(score, value, length, length + SPECIAL))
    missing = [None] * (len(sharpnesses) - len(c))

    def table(found: Capacity) -> list[Any]:
        logs = found.log_samples_for(GAP, margin=(each - leak) / 2, delta=DELTA) / np.log(10)
        squares = logs.round(2).tolist()
        return [[[missing + row for row in rows] for rows in square] for square in squares]

    tables = {"norms": table(capacity.dimension_free()), "parameters": table(capacity)}
    return {"functions": functions, "places": places, "sharpnesses": sharpnesses, **tables}


def main() -> None:
    for name in ("estimator", "sparse"):
        explorer = find_explorer(name)
        values = explorer.values
        if name == "estimator":
            content = scattered_tokens(max(values["tokens"]), values["truth"], values["noise"])
        else:
            content = sample_tables(**values)
        text = json.dumps(content, separators=(",", ":"), allow_nan=False)
        (explorer.folder / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
