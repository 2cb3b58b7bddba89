import xarray as xr

from attlas.atlas.descriptions import describe_figure
from attlas.figure import Figure, row

DATA = xr.Dataset(
    {"risk": (("way", "step"), [[4.0, 1.0, 2.0], [3.0, 2.5, 2.25]])},
    {"way": ["erf", "softmax"], "step": [0, 10, 20]},
)


def spec(figure):
    return figure.chart().to_dict()


def test_each_series_is_told_with_its_ends_and_its_range():
    figure = Figure(DATA, "Risks", x="step t", y="risk").lines("step", "risk", color="way")
    assert describe_figure(spec(figure.rule(2, "Bayes"))) == [
        "Risk against step t, erf: 3 values, 4 at 0, 2 at 20, all between 1 and 4.",
        "Risk against step t, softmax: 3 values, 3 at 0, 2.25 at 20, all between 2.25 and 3.",
        "A horizontal line at 2 (Bayes).",
    ]


def test_panels_and_categories_are_told():
    bars = Figure(DATA.isel(step=-1), y="last risk", x="head").bars("way", "risk")
    facets = Figure(DATA, x="step", y="risk").points("step", "risk").facet("way")
    told = describe_figure(spec(row(bars, title="Two")))
    assert told == ["Last risk against head: erf: 2, softmax: 2.25."]
    assert [line.partition(":")[0] for line in describe_figure(spec(facets))] == [
        "Risk against step, erf",
        "Risk against step, softmax",
    ]
