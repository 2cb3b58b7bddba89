"""Pages to play with: the phase portrait of descent, attention as an estimator, and the sparse head, without a server.

What a slider moves is computed in the page by the few formulas of `assets/explorers.js`, each the twin of a function here, or read from a table of
stored values that is written into the page.
"""

import json
from collections.abc import Collection, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
from jaxtyping import Float
from scipy import special

from attlas.capacity import Capacity, class_of, collapsed_head
from attlas.sparse_variables.embedding import SPECIAL
from attlas.sparse_variables.task import FUNCTIONS

FOLDER = "explorers"
ASSETS = ("explorers.js", "explorers.css")
STORED = "samples.json"
"""What `sample_tables` gave: a minute's work that does not depend on the machine."""

LAMS = (
    0.02,
    0.025,
    0.03,
    0.04,
    0.05,
    0.06,
    0.08,
    0.1,
    0.12,
    0.15,
    0.2,
    0.25,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.9,
    1.0,
    1.2,
    1.5,
    2.0,
    2.5,
    3.0,
)
DIMS = (4, 6, 10, 15, 25, 40, 60, 100, 150, 250, 400, 600, 1000, 1600)
LENGTHS = (2, 3, 5, 7, 10, 15, 20, 30, 50)
GAMMAS = (0.25, 0.35, 0.5, 0.6, 0.5**0.5, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0)

TEMPERATURES = (0.003, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.8, 1.2, 2.0)
RIDGES = (0.0001, 0.001, 0.003, 0.01, 0.03, 0.09, 0.2, 0.5, 1.0, 3.0, 10.0)
TOKENS = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 200)
TRUE_TEMPERATURE, NOISE = 0.1, 0.3

PLACES = (
    10,
    20,
    50,
    100,
    200,
    500,
    1000,
    2000,
    5000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
)
SPARSITIES = tuple(range(1, 9))
SHARPNESSES = (
    0.5,
    0.7,
    1.0,
    1.2,
    1.5,
    2.0,
    3.0,
    4.0,
    6.0,
    8.0,
    12.0,
    16.0,
    24.0,
    32.0,
    64.0,
    128.0,
)
THRESHOLDS = ("and", "or", "majority")
GAP, DELTA = 0.5, 0.05


class Explorer(NamedTuple):
    """A page: its path in the atlas, its title, and a sentence about it."""

    path: str
    title: str
    words: str


EXPLORERS = (
    Explorer(
        f"{FOLDER}/portrait.html",
        "Where descent goes",
        "The phase portrait of single-location descent: its field, fixed points and basins, and the path from where you click.",
    ),
    Explorer(
        f"{FOLDER}/estimator.html",
        "What a head estimates",
        "Drag a query over scattered tokens: softmax attention, CME attention, the truth, and what each token counts for.",
    ),
    Explorer(
        f"{FOLDER}/sparse.html",
        "A head for a sparse function",
        "Attention on a few places among many: its margin, its norms, and the samples that the bound asks for.",
    ),
)

RELATED = (
    (
        "single-location/manifold-invariant",
        "single-location/manifold-fixed-points",
        "single-location/manifold-basins",
        "single-location/critical-lambda",
        "single-location/swapped-attractor",
        "single-location/basins",
    ),
    (
        "latent-posterior/softmax-is-nadaraya-watson",
        "latent-posterior/cme-is-posterior-mean",
        "latent-posterior/bayes-ridge",
        "latent-posterior/softmax-floor",
        "latent-posterior/cme-converges",
    ),
    (
        "sparse-variables/threshold-margin",
        "sparse-variables/threshold-tight",
        "sparse-variables/construction-norms",
        "sparse-variables/implied-samples",
        "sparse-variables/complexity-length",
    ),
)
"""Ids of claims about what each of them shows."""


def write_explorers(
    folder: Path, templates: jinja2.Environment, known: Collection[str] = ()
) -> list[Explorer]:
    """Write the pages and what they share below `folder`, and return them. `known` are the ids of claims that have a page to link to."""
    (folder / FOLDER).mkdir()
    for name in ASSETS:
        (folder / FOLDER / name).write_bytes(_asset(name))
    contents: tuple[dict[str, Any], ...] = (
        {"lams": LAMS, "dims": DIMS, "lengths": LENGTHS, "gammas": GAMMAS},
        {
            "temperatures": TEMPERATURES,
            "ridges": RIDGES,
            "tokens": TOKENS,
            "noise": NOISE,
            "truth": TRUE_TEMPERATURE,
            "data": scattered_tokens(),
        },
        {
            "places": PLACES,
            "sparsities": SPARSITIES,
            "sharpnesses": SHARPNESSES,
            "functions": THRESHOLDS,
            "data": json.loads(_asset(STORED)),
        },
    )
    for explorer, related, content in zip(EXPLORERS, RELATED, contents, strict=True):
        template = templates.get_template(f"explorer_{Path(explorer.path).stem}.html")
        if "data" in content:
            # "<" is written so that no text of the data can end the script element it stands in.
            content["data"] = json.dumps(
                content["data"], separators=(",", ":"), allow_nan=False
            ).replace("<", "\\u003c")
        text = template.render(
            explorer=explorer,
            explorers=EXPLORERS,
            related=related,
            known=known,
            root="../",
            here=explorer.path,
            **content,
        )
        (folder / explorer.path).write_text(text, encoding="utf-8")
    return list(EXPLORERS)


def _asset(name: str) -> bytes:
    return (resources.files("attlas.atlas") / "assets" / name).read_bytes()


def scattered_tokens(seed: int = 3) -> dict[str, Any]:
    r"""Keys on the circle, more of them in front than behind, with values $f(k) + 0.3\,N(0, 1)$; the truth $f$ is a draw of the Gaussian process whose
    kernel is that of softmax attention at `TRUE_TEMPERATURE`, so that CME attention with it and the ridge $0.3^2$ is the posterior mean.

    $e^{(\cos\delta - 1)/\tau} = \sum_j c_j\cos j\delta$ with $c_0 = e^{-1/\tau}I_0(1/\tau)$ and $c_j = 2e^{-1/\tau}I_j(1/\tau)$.
    """
    draws = np.random.default_rng(seed)
    angles = draws.uniform(-np.pi, np.pi, 4 * max(TOKENS))
    keys = angles[draws.uniform(0, 2, len(angles)) < 1 + 0.9 * np.cos(angles)][: max(TOKENS)]
    orders = np.arange(30)
    scales = np.sqrt(np.where(orders == 0, 1, 2) * special.ive(orders, 1 / TRUE_TEMPERATURE))
    cosines, sines = scales * draws.standard_normal((2, len(orders)))

    def truth(x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        return np.cos(np.outer(x, orders)) @ cosines + np.sin(np.outer(x, orders)) @ sines

    values = truth(keys) + NOISE * draws.standard_normal(len(keys))
    grid = np.linspace(-np.pi, np.pi, 361)
    return {
        "keys": keys.round(5).tolist(),
        "values": values.round(5).tolist(),
        "truth": truth(grid).round(5).tolist(),
        "noise": NOISE,
        "temperature": TRUE_TEMPERATURE,
    }


def sample_tables(
    functions: Sequence[str] = THRESHOLDS,
    places: Sequence[int] = PLACES,
    sparsities: Sequence[int] = SPARSITIES,
    sharpnesses: Sequence[float] = SHARPNESSES,
) -> dict[str, Any]:
    """Logarithms to base 10 of the samples from which on the bound for all heads with the norms of `threshold_head` is below `GAP` with probability
    1 - `DELTA`: [function][length][sparsity][sharpness], nothing where the head has no margin; by norms alone, and by counting parameters too."""
    length, s, c = (
        np.array(places)[:, None, None],
        np.array(sparsities)[:, None],
        np.array([c for c in sharpnesses if c > 1]),
    )
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
        return [
            [[missing + row for row in rows] for rows in square]
            for square in logs.round(2).tolist()
        ]

    tables = {"norms": table(capacity.dimension_free()), "parameters": table(capacity)}
    return {"functions": functions, "places": places, "sharpnesses": sharpnesses, **tables}


if __name__ == "__main__":  # writes the stored table again
    path = Path(__file__).parent / "assets" / STORED
    path.write_text(
        json.dumps(sample_tables(), separators=(",", ":"), allow_nan=False) + "\n", encoding="utf-8"
    )
