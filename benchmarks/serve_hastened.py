"""`python -m benchmarks.serve_hastened FACTOR BEGUN WALL URL KEYS LIMIT…`: the server in hastened time."""

from __future__ import annotations

import sys

from .hastened import HastenedLoop, hasten


def main(factor: str, begun: str, wall: str, url: str, keys: str, *limits: str) -> None:
    """Serve until SIGTERM. `factor`, `begun`, `wall`: see hasten."""
    hasten(float(factor), float(begun), float(wall))
    # Only now: the modules take functions out of `time`.
    import asyncio
    from uuid import UUID

    from streamkit.serve.limits import limits_of
    from streamkit.serve.server import Options, listen, make_application, make_server, prepare

    options = Options(url=url, port=0, store=UUID(int=1 << 64), keys=keys, limits=limits_of(limits))
    listening = listen(options.host, options.port)
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    server = make_server(make_application(options), options.host, options.port)
    prepare()
    with asyncio.Runner(loop_factory=HastenedLoop) as runner:
        runner.run(server.serve([listening]))


if __name__ == "__main__":
    main(*sys.argv[1:])
