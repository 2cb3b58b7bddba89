"""Which conformation of a molecule binds?

A molecule bends into many shapes, and smells of musk if one of them fits a receptor. Chemists know
which molecules smell; nobody knows which shape does it. So a molecule is a bag of shapes with one
label, and the head of attention that learns to tell bags apart has to point at a shape. `make data`
fetches the molecules (Dietterich et al. 1997); without them, molecules are made up in which a shape
binds if two angles are right.
"""

from pathlib import Path

import numpy as np
from sklearn.model_selection import cross_val_score

from attlas.estimators import SingleLocationClassifier

DATA = Path(__file__).parents[1] / "build" / "data" / "bags" / "musk1.csv"


def molecules(path: Path = DATA) -> tuple[list[np.ndarray], np.ndarray]:
    if path.exists():
        table = np.loadtxt(path, delimiter=",", skiprows=1)
        ids = table[:, 1]
        return [table[ids == i, 2:] for i in np.unique(ids)], np.array(
            [table[ids == i, 0][0] for i in np.unique(ids)]
        )
    rng = np.random.default_rng(0)
    bags = [rng.normal(size=(rng.integers(2, 9), 12)) for _ in range(90)]
    for bag in bags[::2]:
        bag[rng.integers(len(bag)), :2] += 3
    return bags, np.arange(90) % 2 == 0


def main(path: Path = DATA) -> SingleLocationClassifier:
    bags, smells = molecules(path)
    print(
        f"{len(bags)} molecules, {sum(map(len, bags))} shapes,"
        f" {'measured' if path.exists() else 'made up'}."
    )
    model = SingleLocationClassifier(random_state=0).fit(bags, smells)
    print(model.explain())
    scores = cross_val_score(model, bags, smells, cv=5)
    print(f"Right on molecules that were held out: {scores.mean():.0%}.")
    for i in np.flatnonzero(smells)[:3]:
        share, place = model.attention([bags[i]])[0], model.predict_location([bags[i]])[0]
        print(
            f"Molecule {i} smells by shape {place + 1} of {len(bags[i])}, which has"
            f" {share[place]:.0%} of the attention."
        )
    return model


if __name__ == "__main__":
    main()
