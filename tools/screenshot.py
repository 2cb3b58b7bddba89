"""A picture of a page, taken by headless Chromium: `make screenshot` renews docs/atlas.png."""

import sys
from pathlib import Path

from tools.browser import Browser, chromium

WIDTH, HEIGHT = 1200, 1480


def take(page: Path, picture: Path, width: int = WIDTH, height: int = HEIGHT) -> None:
    """Open `page` from disk, with the network off, and save what the window shows."""
    if chromium() is None:
        sys.exit("No browser was found; `make browser` installs one.")
    with Browser() as browser:
        browser.resize(width, height)
        browser.open(page.resolve())
        picture.write_bytes(browser.picture())


if __name__ == "__main__":
    take(Path(sys.argv[1]), Path(sys.argv[2]))
