"""Many claims on several cores: two processes, each of which measures one claim at a time. Two programs that one process executes at
once can wait for each other in XLA's threads for ever."""

import contextlib
import multiprocessing
import os
import pickle
import signal
import traceback
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from attlas.claims import Claim, catalogue, load_file
from attlas.errors import InputError
from attlas.lab import ONE_THREAD
from attlas.lab.runner import Progress, Result, keep_compiled, recall, run
from attlas.lab.store import Store

PROCESSES = 2
WORTH = 8
"""Claims to measure that are worth the start of processes."""

AHEAD = 2
"""Groups of claims that a process has: the one it measures, and the next, so that it never waits while this one draws a figure."""

Group = list[Claim]


def run_all(
    claims: Sequence[Claim],
    *,
    scale: str,
    seed: int,
    store: Store,
    fresh: bool = False,
    settings: Mapping[str, Sequence[str]] | None = None,
    progress: Progress | None = None,
) -> Generator[Result]:
    """The results of `claims` as they come, each with its `settings`: those that the store holds; then the others, which processes measure if they
    are many. These end with the iterator; what they have stored stays."""
    options: dict[str, Any] = {"scale": scale, "seed": seed}
    changed = {claim.id: (settings or {}).get(claim.id, ()) for claim in claims}
    lacking = []
    for claim in claims:
        known = (
            None
            if fresh
            else recall(claim, store=store, settings=changed[claim.id], record=True, **options)
        )
        if known is None:
            lacking.append(claim)
        else:
            yield known
    options["fresh"] = fresh
    if len(lacking) < WORTH:
        for claim in lacking:
            yield run(claim, store=store, settings=changed[claim.id], progress=progress, **options)
    else:
        yield from _by_processes(
            lacking, store, {id: {**options, "settings": changed[id]} for id in changed}, progress
        )


def _by_processes(
    claims: Sequence[Claim],
    store: Store,
    options: dict[str, dict[str, Any]],
    progress: Progress | None,
) -> Iterator[Result]:
    """One process works from the first claim on and one from the last: neighbours share compiled programs."""
    known = {claim.id: claim for claim in claims}
    waiting = grouped(claims)
    with contextlib.ExitStack() as ends:
        hands = [ends.enter_context(_hand(store)) for _ in range(PROCESSES)]
        while True:
            for side, hand in enumerate(hands):
                while waiting and len(hand.groups) < AHEAD:
                    hand.give(waiting.pop() if side else waiting.popleft(), options)
            busy = [hand for hand in hands if hand.groups]
            if not busy:
                return
            ready = wait([hand.pipe for hand in busy])
            for hand in busy:
                if hand.pipe in ready:
                    answer = hand.answer()
                    if isinstance(answer, Result):
                        store.notes.extend(answer.notes)
                        yield replace(answer, claim=known[hand.done()])
                    elif progress is not None:
                        progress(*answer)


def grouped(claims: Sequence[Claim]) -> deque[Group]:
    """Claims that share their evidence belong together: it is measured once. What takes long comes last, and what several long claims share
    at the very end: there the second process begins, so that short claims are left when both near their end and neither waits for the other."""
    groups: dict[str, Group] = {}
    for claim in claims:
        groups.setdefault(claim.evidence, []).append(claim)
    return deque(sorted(groups.values(), key=lambda group: sum(claim.long for claim in group)))


@dataclass
class _Hand:
    """A process, seen from here, and the ids of what it has to measure."""

    pipe: Any
    groups: deque[deque[str]] = field(default_factory=deque)

    def give(self, group: Group, options: dict[str, dict[str, Any]]) -> None:
        self.groups.append(deque(claim.id for claim in group))
        for claim in group:
            file = str(claim.file) if claim.loaded else None
            self.pipe.send((claim.id, file, claim.code, options[claim.id]))

    def answer(self) -> Any:
        """A result without its claim, or progress."""
        try:
            answer = self.pipe.recv()
        except (EOFError, ConnectionError) as error:
            which = self.groups[0][0]
            raise InputError(
                f"{which} could not be measured: its process was killed, as happens where memory is short"
            ) from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    def done(self) -> str:
        """The id of what was measured."""
        id = self.groups[0].popleft()
        if not self.groups[0]:
            self.groups.popleft()
        return id


@contextlib.contextmanager
def _hand(store: Store) -> Iterator[_Hand]:
    context = multiprocessing.get_context("spawn")  # JAX does not survive a fork
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, str(store.folder)), daemon=True)
    threads = max(1, (os.cpu_count() or 1) // PROCESSES)
    with _environment(ONE_THREAD | {"NPROC": str(threads)}):
        process.start()
    there.close()  # so that its death is seen here
    try:
        yield _Hand(here)
    finally:
        here.close()
        process.terminate()
        process.join()


@contextlib.contextmanager
def _environment(changed: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(changed)
    try:
        yield
    finally:
        for name in changed:
            os.environ.pop(name)
            os.environ.update({name: before[name]} if name in before else {})


# --- in such a process -----------------------------------------------------------------------------------------------


def _serve(pipe: Any, folder: str) -> None:
    """Measure what comes through the pipe until it is closed. Ctrl-C is for the process at its other end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    store = Store(Path(folder))
    keep_compiled(store)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            id, file, code, options = pipe.recv()
            try:
                result = run(
                    _found(id, file, code),
                    store=store,
                    progress=lambda *told: pipe.send(told),
                    **options,
                )
            except ConnectionError:
                raise
            except Exception as error:  # noqa: BLE001 - it is raised again at the other end
                pipe.send(_portable(error))
            else:
                pipe.send(replace(result, claim=None))  # type: ignore[arg-type]  # which no pipe can carry


def _found(id: str, file: str | None, code: str) -> Claim:
    """The claim, if its sources are those that the other process read."""
    if file is not None and id not in catalogue():
        load_file(file)
    claim = catalogue().get(id)
    if claim is None or claim.code != code:
        raise InputError(
            f"{id} cannot be measured: its sources changed after this command began; call it again"
        )
    return claim


def _portable(error: Exception) -> Exception:
    """The error with its traceback in words, or one that says the same if it cannot be pickled."""
    error.add_note(traceback.format_exc())
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - whatever the class of that error does
        said = RuntimeError(f"{type(error).__name__}: {error}")
        said.add_note(traceback.format_exc())
        return said
    return error
