"""No call in the library is of one system only, but for those that ask first."""

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import attlas

FILES = sorted(Path(attlas.__file__).parent.rglob("*.py"))

MODULES = {
    "fcntl",
    "grp",
    "posix",
    "pty",
    "pwd",
    "readline",
    "resource",
    "syslog",
    "termios",
    "tty",
}
NAMES = {
    "os": {
        *("fork", "forkpty", "killpg", "setsid", "getsid", "getpgid", "getpgrp", "setpgid", "nice"),
        *("getuid", "geteuid", "getgid", "getegid", "uname", "sysconf", "mkfifo", "getloadavg"),
        *("sched_getaffinity", "sched_setaffinity", "wait", "wait3", "wait4", "waitid", "WNOHANG"),
        *("chown", "fchmod", "fchown", "pread", "pwrite", "statvfs", "posix_spawn", "mknod"),
        *("O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY", "O_CLOEXEC", "O_SYNC", "ctermid", "ttyname"),
    },
    "signal": {
        *("SIGKILL", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGSTOP", "SIGCONT"),
        *("SIGCHLD", "SIGPIPE", "SIGTSTP", "alarm", "setitimer", "pause", "pthread_kill"),
        *("pthread_sigmask", "sigwait", "SIG_BLOCK", "SIG_SETMASK", "SIG_UNBLOCK"),
    },
    "time": {"clock_gettime", "tzset", "pthread_getcpuclockid"},
    "select": {"poll", "epoll", "kqueue"},
}
"""What Python has not on Windows."""


def one_sided(tree):
    """Uses of these names and modules that nothing around or before them makes sure of."""
    found = []

    def asks(test):
        return any(word in ast.unparse(test) for word in ("hasattr", "sys.platform", "os.name"))

    def visit(node):
        if isinstance(node, ast.If | ast.IfExp) and asks(node.test):
            return
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in NAMES.get(node.value.id, ()):
                found.append(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.Import):
            found.extend(alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            taken = NAMES.get(node.module, ()) if node.module not in MODULES else None
            found.extend(a.name for a in node.names if taken is None or a.name in taken)
        for _, part in ast.iter_fields(node):
            if isinstance(part, list):
                for statement in part:
                    if isinstance(statement, ast.AST):
                        visit(statement)
                    # What comes after `if sys.platform == "win32": return` is safe.
                    asked = isinstance(statement, ast.If) and asks(statement.test)
                    if asked and isinstance(statement.body[-1], ast.Return):
                        break
            elif isinstance(part, ast.AST):
                visit(part)

    visit(tree)
    return found


def test_one_sided_calls_are_found_unless_they_ask_first():
    bare = "import os, fcntl\nfrom signal import SIGKILL\ndef f():\n    return os.fork()\n"
    assert one_sided(ast.parse(bare)) == ["fcntl", "SIGKILL", "os.fork"]
    asking = """
        def f():
            if sys.platform == "win32":
                return None
            import fcntl
            return os.fork()

        def g():
            if hasattr(os, "uname"):
                return os.uname()
            return getattr(os, "O_NOFOLLOW", 0)
        """
    assert not one_sided(ast.parse(textwrap.dedent(asking)))
    after = "def f():\n    if sys.platform == 'win32':\n        x = 1\n    return os.fork()\n"
    assert one_sided(ast.parse(after)) == ["os.fork"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(path.parts[-2:]))
def test_the_library_calls_nothing_that_only_one_system_has(path):
    assert one_sided(ast.parse(path.read_text())) == []


WINDOWS = """
    # What others need of the names that Windows lacks they take before these go.
    import multiprocessing, os, signal, subprocess, sys, tempfile
    import jax, h5netcdf, pandas, sklearn, xarray, altair, click, rich.console, concurrent.futures
    jax.devices()
    sys.platform = "win32"
    for name in {modules}:
        sys.modules[name] = None
    for module, names in {names}.items():
        for name in names:
            if hasattr(sys.modules.get(module), name):
                delattr(sys.modules[module], name)
    os.sysconf_names = {{}}

    import attlas, attlas.atlas.pages, attlas.cli, attlas.estimators
    result = attlas.run("single-location/zeta", store={store!r})
    again = attlas.run("single-location/zeta", store={store!r})
    print(result.verdict.word, again.cached)
    check = attlas.check(lambda a: a**2, lambda rng, n, a: a**2 * rng.exponential(size=n),
                         grid={{"a": [1.0, 2.0]}}, quiet=True)
    print(check.verdict.word)
    from attlas.cli.entry import commands
    commands(["list", "single-location/zeta"], standalone_mode=False)
"""


def test_claims_checks_and_commands_run_where_these_names_are_missing(tmp_path):
    """A rehearsal of Windows: its paths and processes are not in it."""
    names = {module: sorted(names) for module, names in NAMES.items() if module != "time"}
    names["os"].remove("sysconf")
    code = textwrap.dedent(WINDOWS).format(
        modules=sorted(MODULES - {"posix"}), names=names, store=str(tmp_path)
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[:2] == ["confirmed True", "confirmed"]
    assert "zeta" in ran.stdout
