"""A question in twenty lines: three informative tokens, and one, two or three softmax heads.

    python examples/three_tokens.py

The law of the tokens, the target, the head and the loss are functions of fields; overlaps do the
rest, whatever the dimension. A constant leaves 3. Heads whose keys do not read values leave one
for each head that is missing; the best ones found here need not keep to that.
"""

from attlas.order_parameters import Heads, Places, Problem, ValueSum, best_overlaps


def main(signal: float = 6.0, length: int = 8, points: int = 512, trips: int = 100) -> list[float]:
    problem = Problem(Places(length, [signal] * 3), ValueSum(), Heads("softmax"))
    left = []
    for heads in (1, 2, 3):
        search = {"starts": 6, "points": points, "trips": trips}
        best = best_overlaps(problem, 2 * heads, directions=6, **search)
        left.append(float(best["risk"][0]))
        print(f"{heads} softmax heads leave {left[-1]:.3f} ± {float(best['error'][0]):.3f} of 3")
    return left


if __name__ == "__main__":
    main()
