"""boto3's client: for buckets that the lean client does not know how to reach, and the reference for it."""

from __future__ import annotations

from functools import cache
from typing import Any

from streamkit.errors import MissingDependency, PermanentError
from streamkit.importing import IMPORTING

from .counting import Counts
from .errors import Target

__all__ = ["client_of_sdk", "connect_seconds", "no_client", "read_seconds"]

_CONNECTIONS = 160


def connect_seconds(timeout: float) -> float:
    """Seconds to wait for a connection, if a whole operation may take `timeout` seconds."""
    return min(5.0, timeout / 2)


def read_seconds(timeout: float) -> float:
    """Seconds to wait for an answer, likewise."""
    return min(20.0, timeout / 2)


def no_client(problem: str) -> PermanentError:
    return PermanentError(
        f"no S3 client could be made ({problem}); check AWS_ENDPOINT_URL, AWS_CA_BUNDLE and the profile in the AWS "
        "configuration"
    )


def client_of_sdk(target: Target, timeout: float, counts: Counts) -> Any:
    try:
        with IMPORTING:
            import boto3  # noqa: F401  (before its module, see streamkit.importing.importer)
            from boto3.session import Session
            from botocore.config import Config
            from botocore.session import get_session
    except ImportError as error:
        raise MissingDependency(
            f"an s3:// URL needs boto3 ({error.name} is missing): pip install 'streamkit-store[s3]'"
        ) from None
    config = Config(
        connect_timeout=connect_seconds(timeout),
        read_timeout=read_seconds(timeout),
        # The engine must see a lost answer, because it can find the outcome. The SDK cannot.
        retries={"mode": "standard", "total_max_attempts": 1},
        max_pool_connections=_CONNECTIONS,
        tcp_keepalive=True,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        parameter_validation=False,
        user_agent_extra="streamkit",
    )
    try:
        session = get_session()
        session.register_component("data_loader", _models(session.get_config_variable("data_path")))
        # Timestamps stay text: parsing a thousand unused ones is half of the work of a list.
        session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=str)
        client = Session(botocore_session=session, region_name=target.region).client(
            "s3", endpoint_url=target.endpoint, config=config
        )
    except ValueError as error:
        problem = type(error).__name__
    else:
        client.meta.events.register_last("before-call.s3", _no_expect)
        _count(client, counts)
        return client
    raise no_client(problem)


@cache
def _models(path: str | None) -> Any:
    """Read the SDK's service models once in a process: that is nine tenths of the time to make a client."""
    from botocore.loaders import create_loader

    return create_loader(path)


def _no_expect(params: Any, **_: Any) -> None:
    """Asking for leave to send the body costs a round trip; ours are small, and refused ones are few."""
    params["headers"].pop("Expect", None)


def _count(client: Any, counts: Counts) -> None:
    """Count the requests and bytes on the meter of the sending thread."""

    def sent(request: Any, **_: Any) -> None:
        kind: str = request.method
        if kind == "GET" and "list-type=" in request.url:
            kind = "LIST"
        elif kind == "POST":
            kind = "DELETE"
        counts.sent(kind, int(request.headers.get("Content-Length", 0)))

    def received(response_dict: Any, **_: Any) -> None:
        if response_dict is None:
            return
        headers, body = response_dict["headers"], response_dict.get("body")
        size = len(body) if isinstance(body, bytes) else int(headers.get("content-length", 0))
        counts.received(headers.get("date"), size)

    client.meta.events.register("before-send.s3", sent)
    client.meta.events.register("response-received.s3", received)
