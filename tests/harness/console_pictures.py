"""Pictures of the console in both themes and both widths: `python tests/harness/console_pictures.py FOLDER`.

docs/console has some of them. They are made of the shop that the tests look at, with an archive.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from fix_browser import npm_folder
from fix_serve import Served

from harness.shop import fill

SCREENS = {
    "overview": "",
    "space": "spaces/orders",
    "entries": "spaces/orders/segments/order-001?from=beginning",
    "space-entries": "spaces/orders/entries",
    "travel": "spaces/orders/segments/order-001/travel",
    "group": "spaces/orders/groups/billing",
    "queue": "queues/emails",
    "view": "views/orders-by-town",
    "routes": "routes",
    "remove": "spaces/orders/remove",
    "operations": "operations",
    "keys": "keys",
}
WIDTHS = {1440: 900, 390: 844}


def take(page: Any, address: str, screen: str, width: int, file: Path) -> None:
    """Show a screen, choose an entry where there is a list of them, and write its picture."""
    page.goto(f"{address}/console/?{file.stem}#/_/{screen}")
    page.locator("h1#title").wait_for()
    page.locator(".skeleton").first.wait_for(state="detached")
    if "entries" in file.stem and width > 1000:
        page.locator(".row").nth(1).click()
    page.wait_for_timeout(500)
    page.screenshot(path=file)
    shrink(file)


def shrink(file: Path) -> None:
    """Write the picture with 128 colours, if Pillow is there."""
    try:
        from PIL import Image
    except ImportError:
        return
    with Image.open(file) as picture:
        small = picture.convert("RGB").quantize(128, dither=Image.Dither.NONE)
    small.save(file, optimize=True)


def main() -> None:
    """Write all pictures."""
    from playwright.sync_api import sync_playwright

    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    node, modules = npm_folder("chromium")
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        unpack = [node, "executable.js"]
        program = subprocess.run(
            unpack, cwd=modules.parent, env={"TMPDIR": place}, stdout=subprocess.PIPE, text=True, check=True
        ).stdout.strip()
        served = Served(f"file://{place}/stores")
        fill(served.store)
        served.store.create_space("flights", archive_grace=0.001)
        fill_archive(served)
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        for theme in ("light", "dark"):
            for width, height in WIDTHS.items():
                viewport = {"width": width, "height": height}
                page = browser.new_page(viewport=viewport, color_scheme=theme, locale="en-US")
                for name, screen in SCREENS.items():
                    take(page, served.address, screen, width, folder / f"{name}-{theme}-{width}.png")
                page.close()
        browser.close()
        served.close()


def fill_archive(served: Served) -> None:
    """Have commits in the server's own figures, and a space in the archive."""
    for day in range(20):
        records = [{"json": {"flight": n, "day": day}} for n in range(200)]
        served.ask("POST", f"spaces/flights/segments/day-{day:02}/entries", records)
    served.store.archive("flights")


if __name__ == "__main__":
    main()
