#!/bin/sh
# The server with curl: append records, read them, follow them. Start the server first:
#
#   streamkit serve --url file:///tmp/streamkit-serve --store 7d9f2c1e-52a4-4c7b-9d40-0f6a3d1f8e55
#   sh examples/serve/curl.sh
set -eu
server=${1:-http://127.0.0.1:4437}
orders=$server/v1/stores/_/spaces/orders/segments/order-42/entries

# Append two records to a segment. If this is run again, the Idempotency-Key keeps them from being written twice.
curl -fsS "$orders" -H 'Content-Type: application/json' -H 'Idempotency-Key: placed-and-paid' \
    -d '[{"json": {"placed": 3}}, {"json": {"paid": true}}]'
echo

# Read them, then read what is after the first one.
curl -fsS "$orders"
echo
curl -fsS "$orders?after=1"
echo

# Follow the segment: history first, then each entry as it comes. --max-time ends it here.
curl -sS -N --max-time 1 -H 'Accept: text/event-stream' "$orders" || true

# The same server speaks the Durable Streams protocol: create a stream, append to it, read it.
chat=$server/v1/stream/chat/room-1
curl -fsS -X PUT "$chat" -H 'Content-Type: application/json'
curl -fsS "$chat" -H 'Content-Type: application/json' -d '{"text": "hello"}'
curl -fsS "$chat"
echo
