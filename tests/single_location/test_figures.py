import numpy as np
import pytest
import vl_convert

from tests.single_location.test_claims import CLAIMS


@pytest.mark.parametrize("id", CLAIMS)
def test_figure_is_drawn_from_the_evidence(tested, id):
    spec = tested(id).figure().to_dict()
    svg = vl_convert.vegalite_to_svg(spec)
    assert svg.count("<path") > 10
    rows = [row for data in spec["datasets"].values() for row in data]
    assert all(np.isfinite(v) for row in rows for v in row.values() if isinstance(v, float)), "a value is not drawn"
    assert spec["title"]["text"]
