"""`coterie export` and `coterie predict`: a client's model out of a run, and what one says about new data."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from coterie.cli.options import OUTPUT, file, flag
from coterie.errors import CoterieError, printable, require, spreadsheet_cell

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.serve.model_file import About
    from coterie.serve.samples import Samples


def export(
    run: Annotated[Path, Parameter(help="The directory of a run.")],
    /,
    *,
    client: Annotated[
        str, Parameter(help="The client whose model is wanted: its name, or its number from 0.", group=OUTPUT)
    ],
    format: Annotated[
        str, Parameter(help="safetensors, pt2 (torch.export) or onnx; 'coterie predict' takes all.", group=OUTPUT)
    ] = "safetensors",
    out: Annotated[Path | None, file("The file to write; it must be new.", "RUN-client-N.FORMAT", OUTPUT)] = None,
) -> None:
    """Write the model that a client has got from a run as one file."""
    from coterie.report.terminal import print_result
    from coterie.runs.run import open_run
    from coterie.serve.export import export_client

    target = Path(f"{run.stem}-client-{client}.{format}") if out is None else out
    about = export_client(open_run(run), client, target, format)
    if about.note:
        print(f"coterie: warning: {printable(about.note)}", file=sys.stderr)
    where = f"round {about.round} of {about.rounds}"
    print_result(f"The model of client {about.site} ({about.model}, {about.method}, {where}) is in {target}")


SHOWN = 20


def predict(
    model: Annotated[
        Path, Parameter(help="A client's or site's model ('coterie export', 'coterie federation model' write it).")
    ],
    data: Annotated[Path, Parameter(help="New data: .npz, .csv, .parquet, or a folder of images.")],
    /,
    *,
    label: Annotated[str, Parameter(help="The column of a table that holds labels, if any.", group=OUTPUT)] = "label",
    client_column: Annotated[
        str | None,
        Parameter(
            help="The column of a table that says whose a sample is.",
            show_default="client, if there is one",
            group=OUTPUT,
        ),
    ] = None,
    client: Annotated[
        str | None, Parameter(help="Predict only this client's samples.", show_default="everybody's", group=OUTPUT)
    ] = None,
    out: Annotated[Path | None, file("The .csv file to write.", "a table is printed", OUTPUT)] = None,
    all: Annotated[
        bool, flag("Of data that the model was trained on, predict all samples, not just those held out.", OUTPUT)
    ] = False,
) -> None:
    """Print what a site's model predicts for new data, and how often that is right if labels are known."""
    from coterie.data.arrays import Classes
    from coterie.files import write_whole
    from coterie.report.terminal import plain_table, print_result
    from coterie.serve.model import loaded, predict
    from coterie.serve.samples import read_samples

    module, about = loaded(model)
    classes = Classes(about.classes, about.class_names)
    samples = read_samples(data, about.shape, classes, label, client_column, features=about.feature_names)
    if client is not None:
        require(bool(samples.owners), f"client = {client}: {data} does not say whose a sample is; name --client-column")
        samples = samples.of_client(client)
    held_out = _held_out(about, samples, model)
    if held_out is not None and not all:
        print_result(
            f"{about.site} trained on these {len(samples.names)} samples, but for {len(held_out)} that it held out: "
            "only those are predicted (--all predicts all)"
        )
        samples = samples.only(held_out)
    predicted, probabilities = predict((module, about), samples.inputs, progress=True)
    rows = _rows(samples, predicted, probabilities, about)
    header = ["sample", "predicted", "probability", *(["label"] if samples.labels is not None else [])]
    if out is None:
        table = plain_table(*header, right=(2,))
        for row in rows[:SHOWN]:
            table.add_row(*row)
        print_result(table)
        if len(rows) > SHOWN:
            print_result(f"… and {len(rows) - SHOWN} more samples (--out FILE.csv writes all)")
    else:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([header, *(map(spreadsheet_cell, row) for row in rows)])
        write_whole(out, text.getvalue().encode())
        print_result(f"The predictions for {len(rows)} samples are in {out}")
    if samples.labels is not None and len(rows):
        print_result(_judged(probabilities, samples.labels, about.classes))
        if held_out is not None and all:
            part = _judged(probabilities[held_out], samples.labels[held_out], about.classes)
            print_result(f"on the held-out samples: {part}", "the others were trained on: that they fit says little")


def _held_out(about: About, samples: Samples, model: Path) -> Tensor | None:
    """Which of the samples the model was not trained on, if these are its site's own."""
    if about.trained_on is None:
        return None
    from coterie.deployment.site_data import OwnData

    try:
        return OwnData(**about.trained_on).held_out(samples.inputs)
    except (TypeError, ValueError):
        raise CoterieError(f"'{model}': what it holds about its training data cannot be read") from None


def _judged(probabilities: Tensor, labels: Tensor, classes: int) -> str:
    """How good predictions are, in words."""
    import numpy as np

    from coterie.core.task.quality import calibration_errors, quality_of, recalls

    counts = {name: values[0].numpy() for name, values in quality_of([probabilities], [labels], classes).items()}
    hits, shares = int(counts["hits"].sum()), recalls(counts)
    parts = [f"accuracy {hits / len(labels):.4f} ({hits} of {len(labels)} samples)"]
    if not np.isnan(counts["auc"]):
        parts.append(f"AUROC {counts['auc']:.4f}")
    parts.append(f"sensitivity {float(np.nanmean(shares)):.4f} (mean over classes)")
    return ", ".join([*parts, f"calibration error {float(calibration_errors(counts)):.4f}"])


def _rows(samples: Samples, predicted: Tensor, probabilities: Tensor, about: About) -> list[list[str]]:
    """A line for each sample: its name, the predicted class, its probability, and the true class where known."""
    best = probabilities.gather(1, predicted[:, None])[:, 0].tolist()
    rows = [
        [name, about.class_name(number), f"{probability:.4f}"]
        for name, number, probability in zip(samples.names, predicted.tolist(), best, strict=True)
    ]
    if samples.labels is not None:
        for row, number in zip(rows, samples.labels.tolist(), strict=True):
            row.append(about.class_name(number))
    return rows
