"""A site's relay: what its SuperNode sees of the server. Run as `python -m coterie.deployment.flower.relay`.

For every run Flower sends the run's app to the sites, which then run it: whoever holds the server could run anything at
every site. So a SuperNode does not talk to the server but to this relay on its own machine, which compares the bytes of
an app with those that the site built itself from the agreement it accepted. Any other app is refused, shown and written
to the site's audit log, and the SuperNode takes the run for one that is over.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import ssl
import subprocess
import tempfile
from pathlib import Path

from coterie.deployment.flower import fleet
from coterie.deployment.flower.audit import Audit
from coterie.deployment.flower.gateway import opened, served
from coterie.deployment.flower.keys import Keys, Renewal
from coterie.deployment.flower.processes import LOOPBACK, environment, flower_command, split_address
from coterie.deployment.flower.proxy import Gate, Head, Proxy, RefusalError
from coterie.deployment.flower.streams import Target
from coterie.errors import CoterieError
from coterie.files import private_folder, write_whole

APP = "app"
AGREED = "agreed"
PACKED = ".fab"


def packed_app(folder: Path) -> bytes:
    """The app in a folder, packed by Flower: its files in order, uncompressed and without dates, so that the same
    files give the same bytes anywhere.
    """
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [flower_command("flwr"), "build", "--app", str(folder.resolve())],
            cwd=empty,
            env=environment(Path(empty) / "home"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        packed = list(Path(empty).glob(f"*{PACKED}"))
        if done.returncode or len(packed) != 1:
            raise CoterieError(f"Flower cannot pack {folder}: {' '.join((done.stderr or done.stdout).split())}")
        return packed[0].read_bytes()


def app_hash(app: bytes) -> str:
    """The SHA-256 of a packed app, by which server and sites compare what they run."""
    return hashlib.sha256(app).hexdigest()


def agree(folder: Path, app: bytes) -> str:
    """Keep a packed app among those that a site agreed to; its hash."""
    mark = app_hash(app)
    write_whole(private_folder(folder) / f"{mark}{PACKED}", app)
    return mark


def agreed(folder: Path, mark: str) -> bytes | None:
    """The app of a hash, if a site agreed to that: the bytes on its disk count only if they still have the hash."""
    path = folder / f"{mark}{PACKED}"
    if not mark.isalnum() or not path.is_file():
        return None
    app = path.read_bytes()
    return app if app_hash(app) == mark else None


READY = "the relay is open"
RENEWED = "the certificate by which this site knows its server was renewed"
STRANGE_APP = "REFUSED: the server wants to run"


class Relay(Gate):
    """The gate of a site: `folder` holds the apps that it agreed to."""

    def __init__(self, folder: Path, server: str) -> None:
        self._folder, self._server = folder, server

    def admit(self, head: Head) -> None:
        """A SuperNode's requests pass."""
        if head.path not in fleet.OF_SITES | fleet.OF_STRANGERS or head.method != "POST":
            raise RefusalError(404, "not for a server")

    def sees_whole(self, path: str) -> bool:
        """Which app a run is of, and the app itself, are looked at first."""
        return path in (fleet.GET_RUN, fleet.GET_APP)

    def judge(self, path: str, status: int, content: bytes) -> bytes:
        """An app that the site agreed to passes, in the site's own bytes."""
        if status != 200:
            return content
        try:
            if path == fleet.GET_RUN:
                mark, sent = fleet.app_of_run(content), None
            else:
                sent = fleet.sent_app(content)
                mark = app_hash(sent)
        except Exception as error:  # whatever the server sends, it must not end the relay
            raise self._refusal(f"what cannot be read ({type(error).__name__})", "") from None
        app = agreed(self._folder, mark)
        if app is None or (sent is not None and sent != app):
            raise self._refusal(f"the app {mark or 'without a hash'}, to which this site has not agreed", mark)
        return content if sent is None else fleet.app_message(app, mark)

    def takes_time(self, path: str) -> bool:
        """The server holds back that there is nothing to do."""
        return path == fleet.PULL

    def _refusal(self, what: str, mark: str) -> RefusalError:
        print(f"{STRANGE_APP} {what}", flush=True)
        reason = f"the server wants to run {what}"
        return RefusalError(fleet.RUN_IS_OVER, reason, server=self._server, hash=mark)


def relay_words(port: int, server: str, authority: Path | None, loopback: Keys, folder: Path, audit: Path) -> list[str]:
    """The arguments of `python -m` that start a relay."""
    words = [__name__, "--port", str(port), "--server", server, "--loopback", str(loopback.folder)]
    words += ["--agreed", str(folder), "--audit", str(audit)]
    return words if authority is None else [*words, "--root-certificate", str(authority)]


def main() -> None:
    """Open the relay and serve until ended."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--server", required=True, help="HOST:PORT of the server")
    parser.add_argument("--root-certificate", help="what to know the server by; without it nothing is encrypted")
    parser.add_argument("--loopback", required=True, type=Path, help="the folder of the relay's loopback certificate")
    parser.add_argument("--agreed", required=True, type=Path, help="the folder of the apps that the site agreed to")
    parser.add_argument("--audit", required=True, type=Path, help="the file for what is refused")
    given = parser.parse_args()
    loopback = Keys(given.loopback)
    served_with = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served_with.load_cert_chain(loopback.certificate, loopback.key)
    host, port = split_address(given.server)

    def target() -> Target:
        authority = given.root_certificate
        return Target(host, port, ssl.create_default_context(cafile=authority) if authority else None)

    relay = Relay(given.agreed, given.server)
    proxy = Proxy(opened(LOOPBACK, given.port), target(), relay, Audit(given.audit), served_with)

    def renew() -> None:
        proxy.target = target()

    renewal = Renewal((Path(given.root_certificate),), renew, RENEWED) if given.root_certificate else None
    asyncio.run(served(proxy, READY, renewal))


if __name__ == "__main__":
    main()
