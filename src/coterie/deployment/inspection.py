"""A look at a federation's files in a process of its own: launchers run for days and need no PyTorch for it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from coterie.errors import CoterieError

NOTHING_PROMISED = "none is promised, what this site sends has no noise"


@dataclass(frozen=True)
class FederationFacts:
    """What a launcher needs to know of an agreement, and of a site's data if that was looked at."""

    name: str
    sites: list[str]
    rounds: int
    method: str
    samples: int = 0
    metric: str = "accuracy"  # what sites are judged by
    fingerprint: str = ""
    class_names: list[str] = field(default_factory=list)
    version: int = 1
    device: str = ""  # where a site would train
    privacy: str = ""  # what is promised, in words
    server_key: str = ""  # by which the server signs
    most_bytes: int = 0  # of a message, where that was asked for


def look(
    agreement: Path, data: Path | None = None, label: str = "", app: Path | None = None, device: str = ""
) -> FederationFacts:
    """Read and check an agreement; with `data`, load that too and see that it fits; with `app`, write its app there.

    With `device`, see that the site could train on it.
    """
    words = [None if word is None else str(word) for word in (agreement, data, label, app, device)]
    done = subprocess.run([sys.executable, "-m", __name__, json.dumps(words)], stdout=subprocess.PIPE, text=True)
    try:
        answer = json.loads(done.stdout)
    except json.JSONDecodeError:
        raise CoterieError(f"{agreement}: cannot be checked (exit code {done.returncode})") from None
    if "error" in answer:
        raise CoterieError(answer["error"])
    return FederationFacts(**answer)


def look_here(
    agreement: Path, data: Path | None = None, label: str = "", app: Path | None = None, device: str = ""
) -> FederationFacts:
    """The same in this process."""
    from coterie.deployment.agreement import Agreement
    from coterie.deployment.flower.folder import write_app
    from coterie.deployment.site_data import load_site_data
    from coterie.deployment.wire import most_bytes
    from coterie.devices import named, require_there
    from coterie.setup.config import method_name

    agreed = Agreement.read(agreement)
    if device:
        require_there(named(device))
    samples = 0 if data is None else len(load_site_data(agreed, data, label or "label"))
    most = 0
    if app is not None:
        write_app(app, agreed)
        federation = agreed.federation()
        agreed.kind.init(federation)
        most = most_bytes(federation)
    return FederationFacts(
        name=agreed.name,
        sites=list(agreed.sites),
        rounds=agreed.rounds,
        method=method_name(agreed.kind),
        samples=samples,
        metric=agreed.task.primary.scale.name,
        fingerprint=agreed.fingerprint,
        class_names=list(agreed.class_names or map(str, range(agreed.classes))),
        version=agreed.version,
        device=named(device) if device else "",
        privacy="; ".join(filter(None, (part.promised for part in agreed.parts))) or NOTHING_PROMISED,
        server_key=agreed.server_key,
        most_bytes=most,
    )


def main() -> None:
    """Print the facts as JSON, or what is wrong."""
    agreement, data, label, app, device = json.loads(sys.argv[1])
    try:
        facts = look_here(Path(agreement), data and Path(data), label, app and Path(app), device)
        print(json.dumps(asdict(facts)))
    except (CoterieError, OSError) as error:
        print(json.dumps({"error": str(error)}))
    except KeyboardInterrupt:
        sys.exit(130)  # the launcher was interrupted too, and says so


if __name__ == "__main__":
    main()
