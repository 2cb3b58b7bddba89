import re

from tools.sbom import ROOT, bill


def test_every_package_of_the_lock_is_in_the_bill_with_its_hashes():
    lock = (ROOT / "requirements.lock").read_text()
    found = {(c["name"], c["version"]): c for c in bill()["components"] if "version" in c}
    assert set(found) == set(re.findall(r"^([\w.-]+)==(\S+)", lock, re.MULTILINE))
    hashes = [h["content"] for c in found.values() for h in c["hashes"]]
    assert sorted(hashes) == sorted(re.findall("sha256:([0-9a-f]{64})", lock))
    scopes = {name: component["scope"] for (name, _), component in found.items()}
    assert scopes["jax"] == scopes["h5py"] == "required" and scopes["gguf"] == "optional"
    assert scopes["pytest"] == scopes["uv"] == "excluded"


def test_licences_are_declared_that_of_the_font_too():
    components = bill()["components"]
    assert sum(not component["licenses"] for component in components) <= 3  # of other systems
    assert components[-1]["licenses"] == [{"license": {"id": "OFL-1.1"}}]
    about = (ROOT / "pyproject.toml").read_text()
    (files,) = re.findall(r"^license-files = \[(.*)\]", about, re.MULTILINE)
    assert all((ROOT / file).is_file() for file in re.findall('"([^"]+)"', files))
    assert "OFL" in files and 'license = "MIT AND OFL-1.1"' in about


def test_the_lock_has_nothing_that_asks_a_network_for_models():
    lock = (ROOT / "requirements.lock").read_text()
    for name in ("huggingface-hub", "requests", "httpx", "hf-xet", "urllib3"):
        assert f"\n{name}==" not in lock
