from importlib.metadata import version

from attlas import provenance


def test_versions_are_those_that_are_installed():
    assert provenance.versions().split()[0] == version("jax")


def test_the_digest_of_the_package_is_of_every_source(monkeypatch, tmp_path):
    (tmp_path / "below").mkdir()
    for name in ("provenance.py", "below/other.py", "data.json"):
        (tmp_path / name).write_text("x = 1\n")
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "provenance.py"))
    digest = provenance.package_digest.__wrapped__
    first = digest()
    (tmp_path / "data.json").write_text("{}")
    assert digest() == first
    (tmp_path / "below" / "other.py").write_text("x = 2\n")
    assert digest() != first
    second = digest()
    monkeypatch.setattr(provenance, "versions", lambda: "others")
    assert digest() != second
