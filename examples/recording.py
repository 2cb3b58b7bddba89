"""Which sound in a recording was the bird?

A recording from a forest is a bag of sounds, and a listener has noted whether a brown creeper is in
it, not when. A head of attention learns the birds from the notes, and then says of each recording
which sound made the listener write "yes". `make data` fetches 548 recordings (Briggs et al. 2012);
without them, a recording is made up of noises and, perhaps, one call.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from attlas.estimators import SingleLocationClassifier

DATA = Path(__file__).parents[1] / "build" / "data" / "bags" / "birds_brown_creeper.csv"


def sounds(path: Path = DATA) -> pd.DataFrame:
    """A row a sound: what the listener noted, the recording, and what was measured of the sound."""
    if path.exists():
        return pd.read_csv(path)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(1200, 8)), columns=[f"x{i}" for i in range(8)])
    frame["bag"], frame["label"] = np.arange(1200) // 6, np.arange(1200) // 6 % 2
    calls = frame.index[(frame.label == 1) & (frame.index % 6 == 2)]
    frame.loc[calls, ["x0", "x1"]] += 4
    return frame


def main(path: Path = DATA) -> SingleLocationClassifier:
    frame = sounds(path)
    features = frame.drop(columns=["label", "bag"])
    heard = frame.bag % 4 != 0  # a quarter of the recordings is kept aside
    # Linear, so that features are named that select.
    model = SingleLocationClassifier(features="linear", random_state=0)
    model.fit(features[heard], frame.label[heard], bags=frame.bag[heard])
    print(model.explain())
    rest, ids = features[~heard], frame.bag[~heard]
    print(
        f"Right on recordings kept aside: {model.score(rest, frame.label[~heard], bags=ids):.0%}."
    )
    sure = model.predict_proba(rest, bags=ids)[:, 1]
    for name, place, p in list(
        zip(pd.unique(ids), model.predict_location(rest, bags=ids), sure, strict=True)
    )[:4]:
        print(
            f"Recording {name}: a brown creeper with probability {p:.2f}; if so, it is sound"
            f" {place + 1}."
        )
    return model


if __name__ == "__main__":
    main()
