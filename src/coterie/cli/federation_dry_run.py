"""What `federation client --dry-run` does: show a site all that it would send."""

from __future__ import annotations

from pathlib import Path

from coterie.cli.spoken import tell

DRY_RUN = "dry-run"


def dry_run_command(agreement: Path, name: str, data: Path, label: str | None, own: Path) -> None:
    """Train a round on the site's data, send nothing, and show the messages."""
    from coterie.data.loading import DEFAULT_LABEL
    from coterie.deployment.agreement import Agreement
    from coterie.deployment.disclosure import dry_run
    from coterie.deployment.site_data import load_site_data
    from coterie.errors import unknown
    from coterie.files import private_folder
    from coterie.report.terminal import print_result

    agreed = Agreement.read(agreement)
    if name not in agreed.sites:
        raise unknown(f"site of {agreed.name}", name, agreed.sites)
    tell(f"training one round on {data}; nothing is sent")
    private_folder(own)
    found = load_site_data(agreed, data, label or DEFAULT_LABEL)
    print_result(*dry_run(agreed, name, found, own / DRY_RUN))
