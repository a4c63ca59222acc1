"""`coterie federation …`: the options of its commands. What they do is imported when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Group, Parameter

from coterie.cli.federation_extend import extend
from coterie.cli.federation_model import model
from coterie.cli.federation_rollback import rollback
from coterie.cli.settings import option, read_texts
from coterie.cli.terms import SITES, Terms

ANY_PORT = "127.0.0.1:0"
FILES = Group("Method and method options", sort_key=0)
NETWORK = Group("Network", sort_key=2)
OWN = Group("This site", sort_key=1)

Folder = Annotated[Path, Parameter(help="The federation's folder, made by 'coterie federation init'.")]
Insecure = Annotated[
    bool, Parameter(help="No encryption and no keys: for trials on one machine only.", negative=(), group=NETWORK)
]
Commands = Annotated[
    bool, Parameter(help="Print the commands behind this one, and start nothing.", negative=(), group=NETWORK)
]

Status = Annotated[
    str,
    option(
        "HOST:PORT of a page that shows how it goes, with /health and /metrics; 'off' for none.",
        "any free port of 127.0.0.1",
        NETWORK,
    ),
]


def _path(help: str, default: str, group: Group) -> Parameter:
    return Parameter(help=help, show_default=default, group=group)


federation = App(
    name="federation",
    help="Train together over a network, on Flower: every site keeps its data, and its own model.",
)


@federation.command
def init(
    folder: Annotated[Path, Parameter(name="DIR", help="The folder to make.")],
    /,
    *,
    method: Annotated[str, Parameter(help="The method (see 'coterie methods').", group=FILES)] = "fedavg",
    set: Annotated[
        list[str] | None, Parameter(help="A method option, NAME=VALUE; may be repeated.", negative=(), group=FILES)
    ] = None,
    like: Annotated[
        Path | None,
        Parameter(help="Sample data (.csv, .parquet, .npz, folder) to take shape and classes from.", group=SITES),
    ] = None,
    label: Annotated[str | None, option("The label column of that data, if it is a table.", "label", SITES)] = None,
    terms: Terms = Terms(),  # noqa: B008 (frozen)
) -> None:
    """Write the folder of a new federation: what its sites agree on."""
    from coterie.cli.federation_files import init_command

    init_command(folder, method, set or [], like, label, terms.given())


@federation.command
def keys(
    folder: Annotated[Path, Parameter(name="DIR", help="The federation's folder.")],
    /,
    *,
    host: Annotated[
        list[str] | None,
        Parameter(
            help="A name or address by which sites reach the server; may be repeated.",
            show_default="this machine only",
            converter=read_texts,
            negative=(),
            n_tokens=1,
        ),
    ] = None,
    accept: Annotated[
        list[str] | None,
        Parameter(
            help="SITE=KEY: a site's public key as 'federation join' printed it, or a file with it; may be repeated.",
            show_default="none",
            negative=(),
            n_tokens=1,
        ),
    ] = None,
    remove: Annotated[
        list[str] | None,
        Parameter(
            help="A site whose key is to be shut out; may be repeated.",
            show_default="none",
            converter=read_texts,
            negative=(),
            n_tokens=1,
        ),
    ] = None,
    renew: Annotated[
        list[str] | None,
        Parameter(
            help="'server' renews its certificate and key, 'authority' ca.pem for the same key, 'all' everything.",
            show_default="nothing that exists",
            converter=read_texts,
            negative=(),
            n_tokens=1,
        ),
    ] = None,
) -> None:
    """Make the server's certificate, and take the public keys of the sites; what exists stays."""
    from coterie.cli.federation_keys import keys_command

    keys_command(folder, host or [], accept or [], remove or [], renew or [])


@federation.command
def join(
    agreement: Annotated[Path, Parameter(name="AGREEMENT", help="The federation.toml to accept, or its folder.")],
    /,
    *,
    name: Annotated[str, Parameter(help="The site's name.", group=OWN)],
    state: Annotated[
        Path | None,
        _path("The folder in which the site keeps its key, model and logs.", "DIR/sites, or federation-state", OWN),
    ] = None,
    root_certificate: Annotated[
        Path | None, _path("The certificate by which to know the server.", "DIR/keys/ca.pem", NETWORK)
    ] = None,
    new_key: Annotated[
        bool, Parameter(help="Make another key in place of the one that exists.", negative=(), group=OWN)
    ] = False,
    changed: Annotated[
        bool, Parameter(help="Accept an agreement that differs from the one accepted before.", negative=(), group=OWN)
    ] = False,
) -> None:
    """Accept an agreement as one site: show what will run here, and make the site's own key."""
    from coterie.cli.federation_join import join_command

    join_command(agreement, name, state, root_certificate, new_key, changed)


@federation.command
def server(
    folder: Annotated[Path, Parameter(name="DIR", help="The federation's folder.")],
    /,
    *,
    host: Annotated[str, Parameter(help="The address to listen on; 0.0.0.0 means all of them.", group=NETWORK)] = (
        "127.0.0.1"
    ),
    port: Annotated[int | None, option("The port to listen on (0: any free one).", 8000, NETWORK)] = None,
    insecure: Insecure = False,
    keep_running: Annotated[
        bool, Parameter(help="Keep listening after the last round.", negative=(), group=NETWORK)
    ] = False,
    status: Status = ANY_PORT,
    commands: Commands = False,
) -> None:
    """Run a federation's server until the last round is over; the same command resumes a stopped one."""
    from coterie.cli.federation_server import server_command

    server_command(folder, host, 8000 if port is None else port, insecure, keep_running, commands, status)


@federation.command
def client(
    folder: Annotated[
        Path | None, Parameter(name="DIR", help="The federation's folder, if it is here.", show_default=False)
    ] = None,
    /,
    *,
    name: Annotated[str, Parameter(help="The site's name.", group=OWN)],
    data: Annotated[
        Path, Parameter(help="The site's own data: a folder, .npz, .parquet or .csv; nobody else sees it.", group=OWN)
    ],
    label: Annotated[str | None, option("The label column of a table.", "label", OWN)] = None,
    state: Annotated[
        Path | None,
        _path("The folder in which the site keeps its key, model and logs.", "DIR/sites, or federation-state", OWN),
    ] = None,
    agreement: Annotated[
        Path | None, _path("The federation.toml that the site accepts.", "what 'federation join' kept", OWN)
    ] = None,
    device: Annotated[str, Parameter(help="Where the site trains: cpu, cuda, mps or auto.", group=OWN)] = "cpu",
    server: Annotated[str, Parameter(help="HOST:PORT of the server.", group=NETWORK)] = "127.0.0.1:8000",
    key: Annotated[Path | None, _path("The site's private key.", "that of 'federation join'", NETWORK)] = None,
    root_certificate: Annotated[
        Path | None, _path("The certificate by which to know the server.", "that of 'federation join'", NETWORK)
    ] = None,
    insecure: Insecure = False,
    port: Annotated[
        int | None, option("A port on this machine, for this machine alone.", "any free one", NETWORK)
    ] = None,
    status: Status = ANY_PORT,
    dry_run: Annotated[
        bool,
        Parameter(help="Show everything that this site would send, and send nothing.", negative=(), group=OWN),
    ] = False,
    commands: Commands = False,
) -> None:
    """Take part in a federation as one site, until ended (Ctrl-C)."""
    from coterie.cli.federation_client import ClientOptions, client_command

    client_command(
        ClientOptions(
            *(folder, name, data, label, state, agreement, server, key, root_certificate, insecure, port or 0),
            status,
            device,
        ),
        commands,
        dry_run,
    )


federation.command(extend)
federation.command(model)
federation.command(rollback)
