"""Makes sure that the browser tests have a Chromium: an installed one, the distribution's, or Playwright's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys


def main() -> int:
    """Exit code 0 when a Chromium is there; otherwise say what to install."""
    if shutil.which("chromium") or shutil.which("google-chrome"):
        return 0
    if shutil.which("apt-get") and os.geteuid() == 0:
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        return subprocess.run(
            ["apt-get", "install", "-y", "-qq", "chromium"], env=environment, stdout=subprocess.DEVNULL, check=False
        ).returncode
    done = subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=False)
    if done.returncode:
        print(
            "The browser tests need Chromium; install it with your package manager and run this again.", file=sys.stderr
        )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
