#!/bin/sh
# Started by Lambda Web Adapter. The host is this machine's: only the adapter connects.
exec python3 -m streamkit.cli serve --host 127.0.0.1 --port 4437 --keys "$LAMBDA_TASK_ROOT/keys.json"
