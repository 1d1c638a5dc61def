"""The server in AWS Lambda behind API Gateway, by Mangum: JSON and long-polls, no streams of events.

Settings: STREAMKIT_URL, STREAMKIT_STORE, and keys.json beside this file. Mangum decodes paths, so clients write names
with other characters than letters, digits, '-', '.' and '_' as '~' and the base64url of the name.
"""

from __future__ import annotations

import os
from pathlib import Path

from mangum import Mangum

from streamkit.serve import app

handler = Mangum(app(store=os.environ["STREAMKIT_STORE"], keys=Path(__file__).parent / "keys.json"), lifespan="auto")
