// Unpacks Chromium into the folder that TMPDIR names, and prints its path.
import chromium from "@sparticuz/chromium"

console.log(await chromium.executablePath())
