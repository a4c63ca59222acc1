"""`coterie predict`: what a site's model says about new data."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from torch import Tensor

from coterie.data.labels import Classes
from coterie.deployment.predict.file import About
from coterie.deployment.predict.model import loaded, predict
from coterie.deployment.predict.samples import Samples, read_samples
from coterie.files import write_whole
from coterie.report.terminal import plain_table, print_result

SHOWN = 20


def predict_command(model: Path, data: Path, label: str, out: Path | None) -> None:
    """Predict, write or print the table, and print the accuracy if labels are known."""
    module, about = loaded(model)
    classes = Classes(about.classes, about.class_names)
    samples = read_samples(data, about.shape, classes, label)
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
        csv.writer(text, lineterminator="\n").writerows([header, *rows])
        write_whole(out, text.getvalue().encode())
        print_result(f"The predictions for {len(rows)} samples are in {out}")
    if samples.labels is not None:
        correct = int((predicted == samples.labels).sum())
        print_result(f"accuracy {correct / len(rows):.4f} ({correct} of {len(rows)} samples)")


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
