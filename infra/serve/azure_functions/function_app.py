"""The server as an Azure Functions app: JSON and long-polls, no streams of events.

Settings: STREAMKIT_URL (azure://account/prefix), STREAMKIT_STORE, and keys.json beside this file. The adapter decodes
paths, so clients write names with other characters than letters, digits, '-', '.' and '_' as '~' and the base64url of
the name.
"""

from __future__ import annotations

import os
from pathlib import Path

import azure.functions as func

from streamkit.serve import app as server

# The server's own keys decide who may call it.
app = func.AsgiFunctionApp(
    app=server(store=os.environ["STREAMKIT_STORE"], keys=Path(__file__).parent / "keys.json"),
    http_auth_level=func.AuthLevel.ANONYMOUS,
)
