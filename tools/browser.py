"""Headless Chromium, controlled through a pipe, and axe-core, which checks accessibility.

`make browser` installs both. Chromium is Debian's (`apt-get`, as root). axe-core is a package of
npm: downloaded by name and version, never installed, compared with the hash below; one file of it
is kept in the user's cache (platformdirs) or ATTLAS_BROWSER.
`python -m tools.browser PAGE PICTURE.png` takes a picture.
"""

import argparse
import base64
import fcntl
import hashlib
import json
import os
import selectors
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from platformdirs import user_cache_path

AXE = "axe-core@4.10.3"
AXE_SHA256 = "0f2b4d7dcdf7d1219df8d1959ad68e565f51d14c3f0d88bb71cd59abeb956292"
PATIENCE = 180.0
"""Seconds after which an answer is no longer waited for."""


def chromium() -> str | None:
    """The command that starts Chromium, if it is installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def axe_script() -> Path:
    """Where the script of axe-core is kept, or would be."""
    folder = Path(
        os.environ.get("ATTLAS_BROWSER") or user_cache_path("attlas", appauthor=False) / "browser"
    )
    return folder / f"{AXE.replace('@', '-')}.js"


def install() -> None:
    """Install what is missing."""
    missing = [
        name
        for name, found in (("chromium", chromium()), ("npm", shutil.which("npm")))
        if not found
    ]
    if axe_script().exists() and "npm" in missing:
        missing.remove("npm")
    if missing:
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            raise SystemExit(
                f"{' and '.join(missing)} must be installed first"
                f" (Debian, as root: apt-get install {' '.join(missing)})"
            )
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], check=True, env=quiet)
        packages = [
            "apt-get",
            "install",
            "-y",
            "-qq",
            "--no-install-recommends",
            *missing,
            "fonts-dejavu",
        ]
        subprocess.run(packages, check=True, env=quiet)
    if not axe_script().exists():
        _fetch_axe(axe_script())


def _fetch_axe(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        subprocess.run(
            ["npm", "pack", "--silent", AXE], cwd=scratch, check=True, stdout=subprocess.DEVNULL
        )
        (package,) = Path(scratch).glob("*.tgz")
        found = hashlib.sha256(package.read_bytes()).hexdigest()
        if found != AXE_SHA256:
            raise SystemExit(f"{package.name} has the sha256 {found}: expected {AXE_SHA256}")
        with tarfile.open(package) as archive:
            member = archive.extractfile("package/axe.min.js")
            assert member is not None
            taken = Path(scratch) / "axe.js"
            taken.write_bytes(member.read())
        taken.replace(target)


class Browser:
    """One headless Chromium with one page, whose network is off; a context manager.

    `errors` are the errors on the console and `requests` the addresses that were requested, both
    since the page was last opened.
    """

    def __init__(self) -> None:
        command = chromium()
        if command is None:
            raise FileNotFoundError("Chromium is not installed: `make browser` installs it")
        self._profile = tempfile.TemporaryDirectory(
            prefix="attlas-browser-", ignore_cleanup_errors=True
        )
        (its_in, out), (into, its_out) = _high_pipe(), _high_pipe()
        options = (
            "--headless=new",
            "--remote-debugging-pipe",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--no-first-run",
            "--disable-extensions",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--proxy-server=127.0.0.1:9",
            "--force-device-scale-factor=1",
            f"--user-data-dir={self._profile.name}",
            "about:blank",
        )
        # Chromium reads commands from descriptor 3 and answers on 4.
        launch = ["bash", "-c", f'exec "$@" 3<&{its_in} 4>&{its_out}', "bash", command, *options]
        self._process = subprocess.Popen(
            launch,
            pass_fds=(its_in, its_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for end in (its_in, its_out):
            os.close(end)
        self._out, self._into, self._left, self._count = out, into, b"", 0
        self._selector = selectors.DefaultSelector()
        self._selector.register(into, selectors.EVENT_READ)
        self._session: str | None = None
        self._loaded = False
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(1200, 900)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser that this object started."""
        os.close(self._out)  # which it takes as the end of the session
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._selector.close()
        os.close(self._into)
        self._profile.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask for `method` of Chrome's DevTools protocol, and wait for the answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE
        while True:
            answer = self._next(end, method)
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _next(self, end: float, awaited: str) -> dict[str, Any]:
        """The next message; events are noted on the way."""
        while b"\0" not in self._left:
            if not self._selector.select(max(0.0, end - time.monotonic())):
                raise TimeoutError(
                    f"the browser did not answer in {PATIENCE:.0f} seconds ({awaited})"
                )
            part = os.read(self._into, 1 << 20)
            if not part:
                raise RuntimeError(f"the browser ended ({awaited})")
            self._left += part
        text, _, self._left = self._left.partition(b"\0")
        message = json.loads(text)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, event: str | None, told: dict[str, Any]) -> None:
        match event:
            case "Page.loadEventFired":
                self._loaded = True
            case "Network.requestWillBeSent":
                self.requests.append(told["request"]["url"])
            case "Runtime.exceptionThrown":
                details = told["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description", details["text"]))
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning", "assert"):
                self.errors.append(
                    " ".join(
                        str(part.get("value", part.get("description"))) for part in told["args"]
                    )
                )
            case "Log.entryAdded" if told["entry"]["level"] in ("error", "warning"):
                self.errors.append(told["entry"]["text"])

    def resize(self, width: int, height: int) -> None:
        """The size of the window in pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def prefer(self, **features: str) -> None:
        """What the reader prefers, such as `colour_scheme="dark"`; or `media="print"`."""
        media = features.pop("media", "")
        preferred = [
            {"name": f"prefers-{name.replace('colour', 'color').replace('_', '-')}", "value": value}
            for name, value in features.items()
        ]
        self.call("Emulation.setEmulatedMedia", media=media, features=preferred)

    def open(self, page: Path) -> None:
        """Open a page from disk; wait until its scripts are loaded and two frames are drawn."""
        self._loaded = False
        self.errors.clear()
        self.requests.clear()
        answer = self.call("Page.navigate", url=page.resolve().as_uri())
        if "errorText" in answer:
            raise FileNotFoundError(f"{page}: {answer['errorText']}")
        end = time.monotonic() + PATIENCE
        while not self._loaded:
            self._next(end, f"opening {page.name}")
        self.settle()

    def settle(self) -> None:
        """Wait until two more frames have been drawn."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def wait(self, condition: str) -> None:
        """Wait until a condition holds in the page."""
        self.run(
            "new Promise(kept => { const look = () => "
            f"({condition}) ? kept() : setTimeout(look, 20); look(); }})"
        )
        self.settle()

    def run(self, expression: str) -> Any:
        """The value of an expression in the page, its promise kept."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key that has a name, such as ArrowRight, on what has the focus."""
        codes = {
            "ArrowLeft": 37,
            "ArrowUp": 38,
            "ArrowRight": 39,
            "ArrowDown": 40,
            "Tab": 9,
            "Enter": 13,
        }
        # Enter acts on a button by the character that it types.
        for kind in ("keyDown" if key == "Enter" else "rawKeyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=codes[key],
                **({"text": "\r"} if key == "Enter" and kind == "keyDown" else {}),
            )
        self.settle()

    def drag(self, *places: tuple[float, float]) -> None:
        """Press the mouse at the first place, move it over the others, and release it at the last;
        with one place, a click."""
        for kind, (x, y) in (
            ("mousePressed", places[0]),
            *(("mouseMoved", place) for place in places[1:]),
            ("mouseReleased", places[-1]),
        ):
            self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=x,
                y=y,
                button="left",
                buttons=1,
                clickCount=1,
            )
        self.settle()

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self.call("Input.insertText", text=text)
        self.settle()

    def picture(self, whole: bool = False) -> bytes:
        """What the window shows, or the `whole` page, as PNG."""
        shot = self.call(
            "Page.captureScreenshot",
            format="png",
            captureBeyondViewport=whole,
            **({"clip": self._extent()} if whole else {}),
        )
        return base64.b64decode(shot["data"])

    def _extent(self) -> dict[str, float]:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}

    def accessibility(self) -> list[dict[str, Any]]:
        """Violations that axe-core finds on the page: `id`, `impact`, `help` and the `nodes`.

        The inside of figures and formulas is left out: they have labels, and thousands of nodes.
        """
        if not self.run("typeof axe === 'object'"):
            self.run(axe_script().read_text(encoding="utf-8") + ";0")
        return self.run(
            "axe.run({exclude: [['svg'], ['math']]}, {resultTypes: ['violations'], preload: false})"
            ".then(found => found.violations.map(({id, impact, help, nodes}) => ({id, impact, help,"
            " nodes: nodes.map(node => node.html + ' ' + node.failureSummary)})))"
        )


def _high_pipe() -> tuple[int, int]:
    """A pipe whose ends are not among the descriptors that a shell can take for its own."""
    ends = os.pipe()
    reader, writer = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in ends)
    for end in ends:
        os.close(end)
    return reader, writer


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("page", nargs="?", type=Path, help="take a picture of this page")
    parser.add_argument("picture", nargs="?", type=Path, help="write it here, as PNG")
    parser.add_argument("--width", type=int, default=1200)
    parser.add_argument(
        "--height", type=int, default=0, help="of the window; the whole page unless given"
    )
    parser.add_argument(
        "--dark", action="store_true", help="as a reader sees it who prefers dark colours"
    )
    options = parser.parse_args()
    if options.page is None:
        install()
        print(chromium(), axe_script(), sep="\n")
        return
    if options.picture is None:
        raise SystemExit("name the file of the picture too")
    with Browser() as browser:
        browser.resize(options.width, options.height or 900)
        if options.dark:
            browser.prefer(colour_scheme="dark")
        browser.open(options.page)
        time.sleep(1)  # for figures that are drawn piece by piece
        options.picture.write_bytes(browser.picture(whole=not options.height))
    for error in browser.errors:
        print(error, file=sys.stderr)


if __name__ == "__main__":
    main()
