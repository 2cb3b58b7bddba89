from pathlib import Path

from attlas.atlas.speed import HEADLINES, Measured, as_markdown, read_speed


def test_the_readme_shows_the_headlines_of_what_was_measured():
    rows = read_speed()
    assert {row.name for row in rows} & set(HEADLINES)
    assert as_markdown(rows) in (Path(__file__).parents[2] / "README.md").read_text()


def test_the_ratio_is_that_of_cpu_seconds_or_of_the_clock():
    row = Measured("a", "this, against that", 2.0, 50.0, None, 1, "", "2026-11-18", "", 1.0)
    assert row.times == "25"
    assert Measured(**{**vars(row), "cpu": 1.234}).times == "1.23"
