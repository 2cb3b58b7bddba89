from attlas.atlas.titles import title_of


def test_slugs_become_titles():
    assert title_of("softmax-is-nadaraya-watson") == "Softmax is Nadaraya Watson"
    assert title_of("cme-error") == "CME error"
