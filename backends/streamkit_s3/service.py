"""The server of a bucket, and the credentials for it: the AWS configuration as far as the lean client knows it.

botocore finds credentials, regions, profiles and endpoints. It is not imported if the environment holds the
credentials and nothing else is configured, as in a function: to import it takes longer than an append.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from ipaddress import ip_address
from typing import Any

from streamkit.backend import split_url
from streamkit.importing import IMPORTING

from .errors import Target

__all__ = ["Service", "find"]

_READ_HERE = re.compile(
    r"AWS_(ACCESS_KEY_ID|SECRET_ACCESS_KEY|SESSION_TOKEN|REGION|DEFAULT_REGION|DEFAULT_OUTPUT|CA_BUNDLE|CONFIG_FILE"
    r"|SHARED_CREDENTIALS_FILE|EC2_METADATA_DISABLED|RETRY_MODE|MAX_ATTEMPTS|EXECUTION_ENV|LAMBDA_\w+|XRAY_\w+)"
)
"""Variables of AWS that are read below, or that change nothing here. Any other one is for botocore."""
_REGION = re.compile(r"(us|eu|ap|sa|ca|me|af|il|mx)-[a-z]+-\d+")
"""The regions whose servers are below amazonaws.com. Those of other partitions are for boto3."""
_HOST_LABEL = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_S3_SETTINGS = {
    "addressing_style",
    "us_east_1_regional_endpoint",
    "max_concurrent_requests",
    "max_queue_size",
    "multipart_threshold",
    "multipart_chunksize",
    "max_bandwidth",
    "io_chunksize",
}
"""The last six concern transfers of files, which a store does not use."""
_UNKNOWN = ("use_fips_endpoint", "use_dualstack_endpoint", "sigv4a_signing_region_set", "auth_scheme_preference")


class _Keys:
    """Credentials in botocore's form. No NamedTuple: its repr would show the secrets."""

    __slots__ = ("access_key", "secret_key", "token")

    def __init__(self, access_key: str, secret_key: str, token: str | None) -> None:
        self.access_key = access_key
        self.secret_key = secret_key
        self.token = token


class Service:
    """A bucket's server. The credentials are asked for at every request, as they may expire."""

    def __init__(self, url: str, region: str, credentials: Callable[[], Any], ca: str | None) -> None:
        parts = split_url(url)
        self.tls = parts.scheme == "https"
        self.server = parts.hostname or ""
        self.port = parts.port or (443 if self.tls else 80)
        shown = f"[{self.server}]" if ":" in self.server else self.server
        self.host = shown if parts.port in (None, 443 if self.tls else 80) else f"{shown}:{parts.port}"
        self.root = parts.path.rstrip("/")
        """The beginning of every object's path."""
        self.region = region
        self.credentials = credentials
        self.ca = (ca or _default_ca()) if self.tls else None

    def __repr__(self) -> str:
        return f"<Service {self.host}{self.root} {self.region}>"


def find(target: Target) -> Service | None:
    """The server of a bucket; None if only boto3 knows how to reach it: its client is to be used.

    An error of botocore if there are no credentials, or a damaged configuration.
    """
    if _is_plain(os.environ):
        return _in_environment(target, os.environ)
    return _by_botocore(target)


def _is_plain(environment: Mapping[str, str]) -> bool:
    """True if the environment holds the credentials, and there is nothing else to look at."""
    if not (environment.get("AWS_ACCESS_KEY_ID") and environment.get("AWS_SECRET_ACCESS_KEY")):
        return False
    if any(name.startswith("AWS_") and not _READ_HERE.fullmatch(name) for name in environment):
        return False
    if any(name.lower() in ("http_proxy", "https_proxy", "all_proxy") for name in environment):
        return False
    files = {"AWS_CONFIG_FILE": "~/.aws/config", "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials"}
    return not any(os.path.exists(os.path.expanduser(environment.get(name, file))) for name, file in files.items())


def _in_environment(target: Target, environment: Mapping[str, str]) -> Service | None:
    url = _url(target.bucket, target.region or environment.get("AWS_DEFAULT_REGION"), target.endpoint, {})
    if url is None:
        return None
    keys = _Keys(
        environment["AWS_ACCESS_KEY_ID"], environment["AWS_SECRET_ACCESS_KEY"], environment.get("AWS_SESSION_TOKEN")
    )
    region = target.region or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
    ca = environment.get("AWS_CA_BUNDLE") or environment.get("REQUESTS_CA_BUNDLE")
    return Service(url, region, lambda: keys, ca)


def _by_botocore(target: Target) -> Service | None:
    with IMPORTING:
        from botocore.configprovider import ConfiguredEndpointProvider
        from botocore.exceptions import NoCredentialsError
        from botocore.session import get_session
        from botocore.utils import get_environ_proxies

    session = get_session()
    profile = session.get_scoped_config()
    settings = profile.get("s3") or {}
    unknown = (
        not isinstance(settings, dict)
        or not settings.keys() <= _S3_SETTINGS
        or any(session.get_config_variable(name) for name in _UNKNOWN)
        or session.get_config_variable("defaults_mode") not in (None, "legacy")
        or session.get_config_variable("csm_enabled")
    )
    if unknown:
        return None
    settings = {**settings, **(session.get_config_variable("s3") or {})}
    endpoint = target.endpoint
    if endpoint is None and not session.get_config_variable("ignore_configured_endpoint_urls"):
        endpoint = ConfiguredEndpointProvider(session.full_config, profile, "s3").provide()
    region = target.region or session.get_config_variable("region")
    url = _url(target.bucket, region, endpoint, settings)
    if url is None or get_environ_proxies(url):
        return None
    found = session.get_credentials()
    if found is None:
        raise NoCredentialsError
    ca = session.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE")
    return Service(url, region or "us-east-1", found.get_frozen_credentials, ca)


def _url(bucket: str, region: str | None, endpoint: str | None, settings: Mapping[str, Any]) -> str | None:
    """The URL of a bucket, as botocore makes it; None if botocore's rules for it are not among those below."""
    if "--" in bucket:
        return None  # a suffix that names another kind of bucket
    style = settings.get("addressing_style") or "auto"
    if style not in ("auto", "path", "virtual"):
        return None
    in_host = bool(_HOST_LABEL.fullmatch(bucket)) and style != "path"
    if endpoint is not None:
        parts = split_url(endpoint)
        host = parts.hostname or ""
        if not host or parts.scheme not in ("http", "https") or parts.query or "amazonaws." in host:
            return None
        base = f"{parts.netloc}{parts.path.rstrip('/')}"
        in_host = in_host and style == "virtual" and not _is_address(host)
        return f"{parts.scheme}://{bucket}.{base}" if in_host else f"{parts.scheme}://{base}/{bucket}"
    if region is None or not _REGION.fullmatch(region) or not re.fullmatch(r"[a-z0-9.-]+", bucket):
        return None
    everywhere = region == "us-east-1" and settings.get("us_east_1_regional_endpoint", "legacy") != "regional"
    host = "s3.amazonaws.com" if everywhere else f"s3.{region}.amazonaws.com"
    return f"https://{bucket}.{host}" if in_host else f"https://{host}/{bucket}"


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


@cache
def _default_ca() -> str:
    """The certificates that botocore trusts."""
    if find_spec("certifi") is not None:
        from certifi import where

        return where()
    found = find_spec("botocore")
    assert found is not None
    assert found.origin is not None
    return os.path.join(os.path.dirname(found.origin), "cacert.pem")
