import numpy as np
import pytest
import vl_convert

from attlas.claims import catalogue


@pytest.mark.parametrize("id", [id for id, claim in catalogue().items() if claim.map == "single-location"])
def test_figure_draws_theory_beside_measurement(tested, id):
    spec = tested(id).figure().to_dict()
    svg = vl_convert.vegalite_to_svg(spec)
    assert svg.count("<path") > 10
    rows = [row for data in spec["datasets"].values() for row in data]
    assert all(np.isfinite(v) for row in rows for v in row.values() if isinstance(v, float)), "a value is not drawn"
    titles = str(spec)
    assert '"title"' in titles.replace("'", '"') and spec["title"]["text"]
