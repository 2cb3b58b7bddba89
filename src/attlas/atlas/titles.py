"""What pages call a claim."""

_SPELLINGS = {
    word.lower(): word for word in ("Adam", "Bayes", "Finetti", "Lipschitz", "Nadaraya", "Watson")
} | {word.lower(): word for word in ("CME", "CRPS", "MLP")}


def title_of(slug: str) -> str:
    """A slug as a title."""
    words = " ".join(_SPELLINGS.get(word, word) for word in slug.split("-"))
    return words[:1].upper() + words[1:]
