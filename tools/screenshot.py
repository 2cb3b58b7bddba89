"""A picture of a page, taken by headless Chromium: `make screenshot` renews docs/atlas.png."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTH, HEIGHT = 1200, 1480


def take(page: Path, picture: Path, width: int = WIDTH, height: int = HEIGHT) -> None:
    """Open `page` from disk, with nothing of a network, and save what the window shows."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        sys.exit("No browser was found; install one (Debian: apt-get install chromium).")
    with tempfile.TemporaryDirectory() as profile:
        words = [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--virtual-time-budget=5000",
        ]
        words += [f"--user-data-dir={profile}", f"--window-size={width},{height}", f"--screenshot={picture.resolve()}"]
        told = subprocess.run(
            [*words, page.resolve().as_uri()], capture_output=True, text=True, timeout=300, check=False
        )
    if told.returncode or not picture.is_file():
        sys.exit(f"The browser could not open {page}: {told.stderr.strip()[-300:]}")


if __name__ == "__main__":
    take(Path(sys.argv[1]), Path(sys.argv[2]))
