"""The commands `serve`, for the stores of a URL over HTTP, and `keys`, for the keys of that server."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from .options import Archive, Json, StoreId, Url, open_client, resolved_archive, resolved_url, store_uuid
from .output import print_line, print_note

__all__ = ["console", "keys", "serve"]


def serve(
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="PORT", help="The port; 0 takes a free one.")] = 4437,
    workers: Annotated[int, typer.Option(min=1, max=256, metavar="N", help="The number of processes.")] = 1,
    keys: Annotated[Path | None, typer.Option(metavar="FILE", help="Require one of the keys in this file.")] = None,
    jwt_secret: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Accept JWT that are signed with the secret in this file.")
    ] = None,
    jwks: Annotated[
        str | None, typer.Option(metavar="URL", help="Accept JWT that are signed with a key at this URL.")
    ] = None,
    audience: Annotated[str | None, typer.Option(metavar="TEXT", help="Require this audience in a JWT.")] = None,
    issuer: Annotated[str | None, typer.Option(metavar="TEXT", help="Require this issuer in a JWT.")] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Permit this name in the Host header.")
    ] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(metavar="ORIGIN", help="Permit requests from the pages of this site.")
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NUMBER", help="Set a limit, such as streams=100; 0 removes it. Repeat it for several."
        ),
    ] = None,
    topics: Annotated[bool, typer.Option("--topics", help="Serve /v0, the interface of topics, too.")] = False,
    http2: Annotated[
        bool, typer.Option("--http2", help="Speak HTTP/2, too: with prior knowledge, or over TLS.")
    ] = False,
    console: Annotated[
        bool, typer.Option("--console/--no-console", help="Serve /console/, pages for browsers, too.")
    ] = True,
    tls_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The certificate for HTTPS, in PEM.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The private key of the certificate, in PEM.")
    ] = None,
    url: Url = None,
    store: StoreId = None,
    archive: Archive = None,
) -> None:
    """Serve the stores of --url over HTTP until SIGTERM or Ctrl-C.

    In paths, `_` names the store of --store. Without --keys or JWT the server listens on this machine only. The extra
    `serve` is needed.
    """
    from ..serve.limits import limits_of
    from ..serve.server import Options
    from ..serve.server import serve as serve_here

    if tls_key is not None and tls_certificate is None:
        raise typer.BadParameter("give --tls-certificate too", param_hint="--tls-key")
    if tls_certificate is not None:
        _check_tls(tls_certificate, tls_key)
    if jwt_secret is not None and not jwt_secret.is_file():
        raise typer.BadParameter(f"there is no file {str(jwt_secret)!r}", param_hint="--jwt-secret")
    own = _own_store(store)
    open_client(url, archive).close()  # a wrong URL is reported before the server starts
    options = Options(
        url=resolved_url(url),
        archive=resolved_archive(archive),
        host=host,
        port=port,
        store=own,
        keys=_text(keys),
        jwt_secret=_text(jwt_secret),
        jwks=jwks,
        audience=audience,
        issuer=issuer,
        allow_hosts=allow_host or [],
        allow_origins=allow_origin or [],
        certificate=_text(tls_certificate),
        private_key=_text(tls_key),
        topics=topics,
        http2=http2,
        console=console,
        limits=limits_of(limit or ()),
    )

    def tell(address: str) -> None:
        print_line(f"streamkit serves {address}")
        if console:
            print_line(f"the console is at {address}/console/")

    if workers == 1:
        _exit_at_sigterm()
        serve_here(options, tell)
    else:
        from ..serve.workers import serve_by_workers

        serve_by_workers(options, workers, tell)


def _exit_at_sigterm() -> None:
    """Have SIGTERM end the process with the exit code 0. The server raises the signal again once it has drained."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))


def _own_store(store: str | None) -> UUID | None:
    named = store or os.environ.get("STREAMKIT_STORE")
    return store_uuid(named, "--store") if named else None


def _check_tls(certificate: Path, key: Path | None) -> None:
    """Raise BadParameter if no server can use these files. The key may be in the file of the certificate."""
    import ssl

    for option, path in (("--tls-certificate", certificate), ("--tls-key", key)):
        if path is not None and not path.is_file():
            raise typer.BadParameter(f"there is no file {str(path)!r}", param_hint=option)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        where = f"{str(certificate)!r} and {str(key)!r} are" if key is not None else f"{str(certificate)!r} is"
        more = "" if key is not None else "; give --tls-key FILE, if the key is in another file"
        reason = f" ({error.reason})" if error.reason else ""
        text = f"{where} not a certificate and its private key, both in PEM{reason}{more}"
        raise typer.BadParameter(text, param_hint="--tls-certificate") from None


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())


def console(
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="PORT", help="The port; 0 takes a free one.")] = 0,
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the browser; the address is printed in any case.")
    ] = True,
    url: Url = None,
    store: StoreId = None,
    archive: Archive = None,
) -> None:
    """Show the stores of --url in a browser, until Ctrl-C.

    The server listens on this machine only. The printed link works once and signs the browser in. The extra `serve`
    is needed.
    """
    import secrets
    import tempfile

    from ..serve.keys import KeyFile
    from ..serve.server import Options
    from ..serve.server import serve as serve_here

    own = _own_store(store)
    with open_client(url, archive) as client:
        own = own or _only(client.stores())
    code = secrets.token_urlsafe(24)

    def started(address: str) -> None:
        link = f"{address}/console/#code={code}"
        print_line(f"the console is at {link}")
        if open_browser:
            import webbrowser

            webbrowser.open(link)

    _exit_at_sigterm()  # otherwise the folder below would stay
    with tempfile.TemporaryDirectory(prefix="streamkit-console-") as folder:  # no other user may read it
        keys = KeyFile(Path(folder) / "keys.json")
        keys.create(["admin"], name="streamkit console")
        place = resolved_archive(archive)
        options = Options(url=resolved_url(url), archive=place, port=port, store=own, keys=str(keys.path), code=code)
        options.allow_hosts = ["localhost", "127.0.0.1"]
        serve_here(options, started)


def _only(stores: Iterable[UUID]) -> UUID | None:
    """The store that is alone; None if there are several, or none."""
    first = list(islice(stores, 2))
    return first[0] if len(first) == 1 else None


keys = typer.Typer(help="The keys of `streamkit serve --keys FILE`.", no_args_is_help=True)
KeysFile = Annotated[Path, typer.Argument(metavar="FILE", help="The file of keys.", show_default=False)]


@keys.command()
def create(
    file: KeysFile,
    scope: Annotated[
        list[str], typer.Option(metavar="SCOPE", help="read, write, delete or admin; repeat it for several.")
    ],
    store: Annotated[
        list[str] | None, typer.Option(metavar="UUID", help="Restrict the key to this store; repeat it for several.")
    ] = None,
    space: Annotated[
        list[str] | None,
        typer.Option(metavar="PREFIX", help="Restrict it to spaces whose names begin with this prefix."),
    ] = None,
    segment: Annotated[
        list[str] | None,
        typer.Option(metavar="PREFIX", help="Restrict it to segments whose names begin with this prefix."),
    ] = None,
    ttl: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Servers refuse the key this many seconds after its creation."),
    ] = None,
    name: Annotated[str, typer.Option(metavar="TEXT", help="A remark, for `keys list`.")] = "",
    priority: Annotated[
        int, typer.Option(metavar="N", help="Requests of a lower priority than others wait when the server is busy.")
    ] = 0,
) -> None:
    """Make a key and print it. It is shown only now: the file holds its SHA-256."""
    from ..serve.keys import KeyFile

    try:
        stores = [UUID(text) for text in store or ()]
    except ValueError:
        raise typer.BadParameter("a store is named by its UUID", param_hint="--store") from None
    made = KeyFile(file).create(
        scope, stores=stores, spaces=space or (), segments=segment or (), ttl=ttl, name=name, priority=priority
    )
    print_line(made)


@keys.command("list")
def list_keys(file: KeysFile, json: Json = False) -> None:
    """Show what each key allows."""
    import msgspec

    from ..serve.keys import KeyFile

    if not file.exists():
        print_note(f"there is no file {str(file)!r}: `streamkit keys create` makes it")
        return
    for key in KeyFile(file).read():
        if json:
            told = {name: value for name, value in msgspec.to_builtins(key).items() if name != "hash"}
            print_line(msgspec.json.encode(told))
            continue
        bounds = [*map(str, key.stores), *[f"{p}*" for p in key.spaces], *[f"…/{p}*" for p in key.segments]]
        print_line("  ".join([key.id, ",".join(key.scopes), " ".join(bounds) or "everything", key.name]).rstrip())


@keys.command()
def revoke(
    file: KeysFile,
    id: Annotated[str, typer.Argument(metavar="ID", help="The id of the key, from `keys list`.", show_default=False)],
) -> None:
    """Remove a key. Servers refuse it within a second."""
    from ..serve.keys import KeyFile

    KeyFile(file).revoke(id)
