import pytest

from attlas.atlas.overviews import bounds_figure, forest_figure, forest_table, summary_of

KIND = {
    "title": "Bags",
    "measures": ["accuracy"],
    "rows": [
        {"data": data, "method": method, "ahead": ahead}
        for data, method, ahead in (
            ("musk", "ours", None),
            ("musk", "SVM", [-0.04, -0.12, 0.04]),
            ("musk", "forest", [-0.02, -0.08, 0.04]),
            ("dogs", "SVM", [-0.1, -0.15, -0.05]),
            ("elephant", "SVM", [0.1, 0.05, 0.15]),
        )
    ],
}


def test_what_trails_is_said():
    assert summary_of(KIND) == [
        "dogs: behind SVM.",
        "musk: the means of every other method are better, within their intervals.",
    ]
    assert summary_of({**KIND, "rows": KIND["rows"][-1:]}) == []
    one = [{**KIND["rows"][1], "ahead": [0.1, 0.05, 0.15]}, KIND["rows"][2]]
    assert summary_of({**KIND, "rows": one}) == [
        "musk: the mean of forest is better, within its interval."
    ]
    sizes = [{**KIND["rows"][3], "data": f"dna, n = {n}"} for n in (50, 400)]
    assert summary_of({**KIND, "rows": sizes}) == ["DNA splices, n = 50 and 400: behind SVM."]


def test_a_forest_has_a_row_for_each_comparison():
    table = forest_table(KIND)
    assert list(table["standing"]) == ["level", "level", "behind", "ahead"]
    assert table["error"][0] == pytest.approx(0.04)
    chart = forest_figure(KIND, rows=2).chart().to_dict()
    assert len(max(chart["datasets"].values(), key=len)) == 2


def test_bounds_run_from_their_loosest_to_their_tightest_setting(tested):
    result = tested("sparse-variables/threshold-margin")
    evidence = result.evidence.assign(
        bound=("point", [1.0, 2.0, 4.0]), measured=("point", [0.5, 0.02, 0.0])
    )
    chart = bounds_figure([type(result)(**{**vars(result), "evidence": evidence})]).chart()
    rows = max(chart.to_dict()["datasets"].values(), key=len)
    assert {row["share"] for row in rows} == {0.5, 1e-6}
