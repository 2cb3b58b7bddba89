"""Figures over many results: every bound on one axis, the estimators beside other methods, and the
pictures of the doors that no claim has."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from attlas.atlas.filters import data_name, standing
from attlas.atlas.titles import title_of
from attlas.audit.auditing import kept_audit
from attlas.figure import Figure
from attlas.lab.runner import Result

ROW = 24
"""Pixels of a row of a list."""
LEAST = 1e-6
"""The left end of the axis of shares of a bound."""


def bounds_figure(results: Sequence[Result]) -> Figure:
    """The share of each bound that was reached, from the setting in which it is loosest to the one
    in which it is tightest."""
    rows = []
    for result in results:
        evidence = result.claim.fit(result.evidence)
        shares = (evidence["measured"] / evidence["bound"]).values.ravel()
        shares = shares[np.isfinite(shares)]
        claim = title_of(result.claim.slug)
        rows += [
            {"claim": claim, "share": max(float(share), LEAST), "setting": setting}
            for share, setting in (
                (shares.max(), "tightest setting"),
                (shares.min(), "loosest setting"),
            )
        ]
    table = pd.DataFrame(rows)
    figure = Figure(
        table,
        "How much of each bound was reached",
        "1 is a bound that is attained; each row runs from the loosest to the tightest setting",
        x="measured / bound",
        y="",
        log="x",
        domain={"x": (LEAST, 1.5)},
        legend={"setting": None},
        width=560,
        height=ROW * len(results),
    )
    figure.lines("share", "claim", detail="claim", ink="#999999")
    return figure.points("share", "claim", color="setting", size=60).rule(1, axis="x", dash=False)


def forest_figure(kind: Mapping[str, Any], rows: int | None = None) -> Figure:
    """By how much the estimator is ahead of each other method, with intervals at 95 %; of the first
    `rows` comparisons, if given."""
    table = forest_table(kind)[:rows]
    groups = table["against"].str.partition(": ")[0].nunique()
    return (
        Figure(
            table,
            f"{kind['title']}: ours ahead by, in {kind['measures'][0]}",
            "dots: means of paired folds; strokes: intervals at 95 %; right of 0 ours is better",
            x=f"ours ahead by ({kind['measures'][0]})",
            y="",
            legend={"standing": "ours is"},
            domain={"standing": ("level", "behind", "ahead")},
            width=480,
            height=ROW * max(2, len(table) + groups),
        )
        .points("ahead", "against", error="error", color="standing", size=50)
        .rule(0, axis="x")
    )


def forest_table(kind: Mapping[str, Any]) -> pd.DataFrame:
    """One row for each comparison: data and method, the difference, and half of its interval as two
    errors."""
    return pd.DataFrame(
        [
            {
                "against": f"{data_name(row['data'])}: {row['method']}",
                "ahead": row["ahead"][0],
                "error": (row["ahead"][2] - row["ahead"][1]) / 4,
                "standing": standing(row["ahead"]),
            }
            for row in kind["rows"]
            if row["ahead"]
        ]
    )


def summary_of(kind: Mapping[str, Any]) -> list[str]:
    """Where ours is not the best, a line for each way in which it is not: behind some methods
    beyond doubt, or with a lower mean."""
    found: dict[str, list[str]] = {}
    for data in dict.fromkeys(row["data"] for row in kind["rows"]):
        rows = [row for row in kind["rows"] if row["data"] == data and row["ahead"]]
        behind = [row["method"] for row in rows if standing(row["ahead"]) == "behind"]
        better = [row["method"] for row in rows if row["ahead"][0] < 0]
        if behind:
            found.setdefault(f"behind {_listed(behind)}", []).append(data)
        elif len(better) == 1:
            words = f"the mean of {better[0]} is better, within its interval"
            found.setdefault(words, []).append(data)
        elif better:
            others = "every other method" if len(better) == len(rows) else _listed(better)
            words = f"the means of {others} are better, within their intervals"
            found.setdefault(words, []).append(data)
    order = sorted(found, key=lambda words: not words.startswith("behind"))
    return [f"{_together(found[words])}: {words}." for words in order]


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _together(names: Sequence[str]) -> str:
    """Data sets one after the other, each with all that is said of it after a comma: "dogs, n = 20
    and 50; cats"."""
    said: dict[str, list[str]] = {}
    for name in map(data_name, names):
        data, _, rest = name.partition(", n = ")
        said.setdefault(data, []).extend([rest] if rest else [])
    return "; ".join(
        f"{data}, n = {' and '.join(sizes)}" if sizes else data for data, sizes in said.items()
    )


def heads_figure(name: str) -> Figure:
    """Every head of a kept audit, by how much its attention spreads."""
    heads = kept_audit(name).heads[["entropy"]]
    return Figure(heads, x="head", y="layer", width=420, height=210).squares(
        "head", "layer", "entropy"
    )
