import pytest


@pytest.mark.xdist_group("together")
def test_tests_of_a_group_stay_in_one_process(request):
    """By a suffix of their names, which some versions of pytest drop in silence."""
    if not hasattr(request.config, "workerinput"):
        pytest.skip("one process alone runs these tests")
    assert request.node.nodeid.endswith("@together")
