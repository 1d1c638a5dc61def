"""Write to a stream and follow it with the PyPI client of the Durable Streams protocol (`pip install durable-streams`).

streamkit serve --url file:///tmp/streamkit-serve --store 7d9f2c1e-52a4-4c7b-9d40-0f6a3d1f8e55
python examples/serve/durable_client.py
"""

from __future__ import annotations

import sys

from durable_streams import DurableStream, stream


def main(server: str = "http://127.0.0.1:4437") -> None:
    """Append ten messages, then read them live until the stream is closed."""
    url = f"{server}/v1/stream/readings/python"
    with DurableStream.create(url, content_type="application/json") as readings:
        for number in range(10):
            readings.append({"reading": number})
        readings.append({"reading": "last"})
    with stream(url, offset="-1", live="sse") as response:
        for message in response.iter_json():
            print(message)
            if message["reading"] == "last":
                break


if __name__ == "__main__":
    main(*sys.argv[1:])
