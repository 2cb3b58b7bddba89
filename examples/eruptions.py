"""How long will the geyser play?

Old Faithful plays for two minutes or for four and a half, hardly ever for three. After a wait of 65
minutes either may come: the mean, three minutes, is what will not happen, and a normal law around
it is no better. Attention over past eruptions gives the whole law, with both modes where there are
two. `make data` fetches the record (Azzalini and Bowman 1990); without it, eruptions are made up in
the same manner.
"""

from pathlib import Path

import numpy as np

from attlas.estimators import ConditionalMeanRegressor

DATA = Path(__file__).parents[1] / "build" / "data" / "conditional" / "faithful.csv"


def eruptions(path: Path = DATA) -> tuple[np.ndarray, np.ndarray]:
    """Waiting times and the length of the eruption that followed, in minutes."""
    if path.exists():
        table = np.loadtxt(path, delimiter=",", skiprows=1)
        return table[:, 1:], table[:, 0]
    rng = np.random.default_rng(0)
    wait = rng.uniform(45, 95, 272)
    long = rng.random(272) < 1 / (1 + np.exp(-(wait - 66) / 3))
    return wait[:, None], np.where(long, rng.normal(4.3, 0.35, 272), rng.normal(2, 0.3, 272))


def main(path: Path = DATA) -> ConditionalMeanRegressor:
    wait, minutes = eruptions(path)
    model = ConditionalMeanRegressor(random_state=0).fit(wait, minutes)
    print(model.explain())
    grid = np.linspace(1, 6, 51)
    for after in (50, 65, 85):
        mean, spread = (x[0] for x in model.predict([[after]], return_std=True))
        density = model.predict_density([[after]], grid)[0]
        print(
            f"After {after} minutes: {mean:.1f} ± {spread:.1f} minutes; longer than three with"
            f" probability {1 - model.cdf([[after]], [3.0])[0]:.2f}."
        )
        print(
            "  "
            + "".join(" .:-=+*#%@"[int(9 * d / density.max())] for d in density)
            + "  1 to 6 minutes"
        )
    rows, weights = model.speakers([[65]], top=3)
    told = ", ".join(
        f"{minutes[i]:.1f} after {wait[i, 0]:.0f} ({w:+.2f})"
        for i, w in zip(rows[0], weights[0], strict=True)
    )
    print(f"Of past eruptions these speak loudest about 65: {told}.")
    return model


if __name__ == "__main__":
    main()
