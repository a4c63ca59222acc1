"""`coterie federation model` and `coterie predict`: from a site's folder to predictions for new data."""

from __future__ import annotations

import csv
import io
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from cli_tools import Answer, call, finish, start
from PIL import Image

from coterie.cli.federation.model import site_folder
from coterie.core.task.quality import quality_of
from coterie.data import Dataset
from coterie.deployment.agreement import Agreement
from coterie.deployment.site import Site
from coterie.deployment.store import Store
from coterie.deployment.workplace import own_split
from coterie.errors import CoterieError
from coterie.serve.model import export_model, predict
from coterie.testing.together import SITES, SIZES, WIDTH, Together, agreed, site_data

PETS = ("cat", "dog", "owl")
DATA = site_data(0, 30)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of a site that tells cats from dogs and owls."""
    folder = tmp_path_factory.mktemp("federation")
    Together(agreed("fedper", class_names=PETS, rounds=5, lr=0.2), folder).run()
    export_model(folder / "trial" / SITES[0], folder / "a.safetensors")
    return folder / "a.safetensors"


@pytest.fixture(scope="module")
def picture_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of a site that tells dark images from light ones, named by numbers."""
    folder = tmp_path_factory.mktemp("pictures")
    agreement = Agreement(
        name="shades", sites=("a",), shape=(3, 4, 4), classes=2, method="local", rounds=3, lr=0.2, least_sites=1
    )
    labels = torch.arange(40) % 2
    noise = 0.1 * torch.randn(40, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    inputs = (2.0 * labels - 1)[:, None, None, None].expand(-1, 3, 4, 4) + noise

    class Shades(Together):
        def site(self, name: str) -> Site:
            store = Store(self.folder, "shades", name, agreement.fingerprint)
            return Site(agreement, name, Dataset("shades", inputs, labels, 2), store)

    Shades(agreement, folder).run()
    export_model(folder / "shades" / "a", folder / "a.safetensors")
    return folder / "a.safetensors"


def lines(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def ok(answer: Answer) -> str:
    assert (answer.code, answer.err) == (0, "")
    return answer.out


@pytest.mark.thorough
def test_arrays_without_labels(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "new.npz", x=DATA.inputs.numpy())
    said = ok(call(capsys, "predict", model, tmp_path / "new.npz", "--out", tmp_path / "out.csv"))
    assert said == f"The predictions for 30 samples are in {tmp_path / 'out.csv'}\n"
    labels, probabilities = predict(model, DATA)
    assert lines(tmp_path / "out.csv") == [
        {"sample": str(place), "predicted": PETS[label], "probability": f"{probability:.4f}"}
        for place, (label, probability) in enumerate(zip(labels.tolist(), probabilities.amax(1).tolist(), strict=True))
    ]


@pytest.mark.parametrize("labels", [DATA.labels.tolist(), [PETS[label] for label in DATA.labels]])
def test_labels_give_the_accuracy(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path, labels: list[int | str]
) -> None:
    np.savez(tmp_path / "new.npz", x=DATA.inputs.numpy(), y=labels)
    said = ok(call(capsys, "predict", model, tmp_path / "new.npz")).splitlines()
    correct = int((predict(model, DATA)[0] == DATA.labels).sum())
    assert correct > 20
    judged = quality_of([predict(model, DATA)[1]], [DATA.labels], 3)
    sensitivity = float((judged["hits"][0] / judged["support"][0]).mean())
    assert said[-1].startswith(f"accuracy {correct / 30:.4f} ({correct} of 30 samples), AUROC {judged['auc'][0]:.4f}, ")
    assert f", sensitivity {sensitivity:.4f} (mean over classes), calibration error 0." in said[-1]
    assert said[-2] == "… and 10 more samples (--out FILE.csv writes all)"
    assert said[0].split() == ["sample", "predicted", "probability", "label"]
    assert said[2].split()[3] == "cat"
    assert len(said) == 24


def test_what_a_site_trained_on_is_not_predicted_unless_asked(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    own = site_data(0, SIZES[0])
    np.savez(tmp_path / "own.npz", x=own.inputs.numpy(), y=own.labels.numpy())
    held_out = own_split(agreed("fedper"), own, 0)[2]
    said = ok(call(capsys, "predict", model, tmp_path / "own.npz", "--out", tmp_path / "out.csv"))
    assert f"trained on these 23 samples, but for {len(held_out)} that it held out: only those" in said
    assert [int(line["sample"]) for line in lines(tmp_path / "out.csv")] == held_out.tolist()
    right = int((predict(model, own)[0] == own.labels)[held_out].sum())
    assert f"({right} of {len(held_out)} samples)" in said
    said = ok(call(capsys, "predict", model, tmp_path / "own.npz", "--all", "--out", tmp_path / "out.csv"))
    assert len(lines(tmp_path / "out.csv")) == 23
    assert f"on the held-out samples: accuracy {right / len(held_out):.4f}" in said
    assert "that they fit says little" in said
    # One sample more, or another order, is other data.
    np.savez(tmp_path / "own.npz", x=own.inputs.flip(0).numpy(), y=own.labels.flip(0).numpy())
    assert "held out" not in ok(call(capsys, "predict", model, tmp_path / "own.npz"))


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("column", [None, "label", "kind"])
def test_tables_with_and_without_labels(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path, suffix: str, column: str | None
) -> None:
    values = {f"f{place}": DATA.inputs[:, place].double().numpy() for place in range(WIDTH)}
    values |= {} if column is None else {column: [PETS[label] for label in DATA.labels]}
    file, out = tmp_path / f"new{suffix}", tmp_path / "out.csv"
    if suffix == ".csv":
        pa.csv.write_csv(pa.table(values), file)
    else:
        pq.write_table(pa.table(values), file)
    named = [] if column in (None, "label") else ["--label", column]
    said = ok(call(capsys, "predict", model, file, "--out", out, *named))
    assert ("accuracy" in said) == (column is not None)
    assert [line["predicted"] for line in lines(out)] == [PETS[label] for label in predict(model, DATA)[0]]
    assert ("label" in lines(out)[0]) == (column is not None)


def shade(path: Path, value: int, mode: str = "RGB", side: int = 4) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (side, side), value if mode == "L" else (value,) * 3).save(path)


def test_a_folder_of_images(capsys: pytest.CaptureFixture[str], picture_model: Path, tmp_path: Path) -> None:
    shade(tmp_path / "new" / "light.png", 250, mode="L", side=9)
    shade(tmp_path / "new" / "dark.png", 5)
    (tmp_path / "new" / "notes.txt").write_text("no image")
    said = ok(call(capsys, "predict", picture_model, tmp_path / "new", "--out", tmp_path / "out.csv"))
    assert "accuracy" not in said
    assert [(line["sample"], line["predicted"]) for line in lines(tmp_path / "out.csv")] == [
        ("dark.png", "0"),
        ("light.png", "1"),
    ]


def test_grey_images_alone(capsys: pytest.CaptureFixture[str], picture_model: Path, tmp_path: Path) -> None:
    shade(tmp_path / "new" / "light.png", 250, mode="L")
    assert "light.png  1" in ok(call(capsys, "predict", picture_model, tmp_path / "new"))


def test_class_folders_give_the_accuracy(
    capsys: pytest.CaptureFixture[str], picture_model: Path, tmp_path: Path
) -> None:
    shade(tmp_path / "1" / "a.png", 250)
    shade(tmp_path / "0" / "b.png", 5)
    shade(tmp_path / "0" / "c.png", 240)
    said = ok(call(capsys, "predict", picture_model, tmp_path))
    assert "accuracy 0.6667 (2 of 3 samples)" in said
    assert str(Path("0") / "c.png") in said


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    answer = call(capsys, "predict", *arguments)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    return answer.err


def test_what_cannot_be_predicted_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], model: Path, picture_model: Path, tmp_path: Path
) -> None:
    new = tmp_path / "new.npz"
    assert "there is no such file or folder" in refused(capsys, model, new)
    np.savez(new, x=np.zeros((2, 5)))
    assert "one input has shape (5,), not (6,)" in refused(capsys, model, new)
    np.savez(new, z=np.zeros((2, 5)))
    assert "has no array 'x' (it holds z)" in refused(capsys, model, new)
    np.savez(new, x=np.full((2, WIDTH), np.nan))
    assert "sample 0 holds NaN" in refused(capsys, model, new)
    np.savez(new, x=np.zeros((2, WIDTH)), y=["cat", "bat"])
    assert "'bat'; did you mean 'cat'?" in refused(capsys, model, new)
    np.savez(new, x=np.zeros((2, WIDTH)), y=[0])
    assert "2 inputs but 1 labels" in refused(capsys, model, new)
    assert "names a column of a table" in refused(capsys, model, new, "--label", "kind")
    assert "is no safetensors file" in refused(capsys, new, new)
    assert "is a folder of images, but the model's inputs have shape (6,)" in refused(capsys, model, tmp_path)
    shade(tmp_path / "split" / "train" / "0" / "a.png", 5)
    assert "holds a folder 'train'" in refused(capsys, picture_model, tmp_path / "split")
    (tmp_path / "new.csv").write_text("a,b\n1,2\n")
    assert "unknown column" in refused(capsys, model, tmp_path / "new.csv", "--label", "kind")
    (tmp_path / "new.txt").write_text("1 2 3")
    assert "unknown kind of file '.txt'" in refused(capsys, model, tmp_path / "new.txt")


def test_the_python_on_the_documentation_page_runs(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(model, "ward-a.safetensors")
    np.savez("new.npz", x=DATA.inputs.numpy())
    page = (Path(__file__).parents[2] / "docs" / "predict.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```python no-run\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(shown) == 2
    for body in shown:
        exec(compile(body, "docs/predict.md", "exec", dont_inherit=True), {"__name__": "example"})
    assert "torch.Size([30, 3])" in capsys.readouterr().out


@pytest.mark.thorough
def test_help_loads_no_pytorch() -> None:
    answer = finish(start("predict", "--help", after="print('torch' in sys.modules)"))
    assert (answer.code, answer.out.splitlines()[-1]) == (0, "False")
    assert "--label" in answer.out


@pytest.mark.thorough
def test_a_sites_model_is_found_by_its_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    together = Together(agreed("fedavg", rounds=4), tmp_path / "sites")
    together.admit()
    together.round()
    out = tmp_path / "b.safetensors"
    said = call(capsys, "federation", "model", "--client", "site-b", "--state", tmp_path / "sites", "--out", out)
    assert said.out == f"The model of site-b (mlp, fedavg, round 1 of 4) is in {out}\n"
    assert said.err.startswith("coterie: warning: site site-b: the federation did not come to its end here")
    assert said.err.count("\n") == 1
    while not together.server.finished:
        together.round()
    together.finish()
    words = ["federation", "model", tmp_path, "--client", "site-b", "--federation", "trial", "--out"]
    assert ok(call(capsys, *words, out)) == f"The model of site-b (mlp, fedavg, round 4 of 4) is in {out}\n"
    assert call(capsys, *words, "b.pt").err == "coterie: error: out = b.pt: must end in .safetensors\n"


def test_which_site_of_which_federation_must_be_clear(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match="there is no such folder"):
        site_folder(tmp_path / "state", "a", None)
    for folder in ("one/a", "two/a", "two/b", "deep/three/c"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "round-00001.safetensors").touch()
    assert site_folder(tmp_path, "b") == tmp_path / "two" / "b"
    assert site_folder(tmp_path, "c") == tmp_path / "deep" / "three" / "c"
    assert site_folder(tmp_path, "a", "one") == tmp_path / "one" / "a"
    with pytest.raises(CoterieError, match="client = a: took part in one, two; say which with --federation"):
        site_folder(tmp_path, "a")
    with pytest.raises(CoterieError, match=r"unknown client .* 'd' \(allowed: a, b, c\)"):
        site_folder(tmp_path, "d")
    with pytest.raises(CoterieError, match=r"unknown federation of b .* 'one' \(allowed: two\)"):
        site_folder(tmp_path, "b", "one")


@pytest.fixture
def ward(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> tuple[Path, Path]:
    """A model out of a run on a table, and the table."""
    draw = np.random.default_rng(0)
    age, pressure, weight = draw.normal(size=(3, 90))
    wards = np.tile(["north", "south", "west"], 30)
    outcome = np.where(age > 0, "well", "sick")
    table = pd.DataFrame({"age": age, "pressure": pressure, "weight": weight, "outcome": outcome, "ward": wards})
    table.to_csv(tmp_path / "visits.csv", index=False)
    words = ["run", "fedper", "--data", tmp_path / "visits.csv", "--label", "outcome", "--client", "ward"]
    words += ["--partition", "by_client", "--rounds", "5", "--lr", "0.2", "--threads", "1", "--out", tmp_path / "run"]
    ok(call(capsys, *words))
    out = tmp_path / "south.safetensors"
    ok(call(capsys, "export", tmp_path / "run", "--client", "south", "--out", out))
    return out, tmp_path / "visits.csv"


def test_columns_are_found_by_name_whatever_their_order(
    capsys: pytest.CaptureFixture[str], ward: tuple[Path, Path], tmp_path: Path
) -> None:
    model, visits = ward
    table = pd.read_csv(visits)
    columns = ["--label", "outcome", "--client-column", "ward"]
    as_trained = ok(call(capsys, "predict", model, visits, *columns))
    assert float(as_trained.split("accuracy ")[1].split()[0]) > 0.9
    for number, separator in enumerate((",", ";", "\t")):
        shuffled = tmp_path / f"{number}.csv"
        table[["ward", "weight", "outcome", "pressure", "age"]].to_csv(shuffled, sep=separator, index=False)
        assert ok(call(capsys, "predict", model, shuffled, *columns)) == as_trained
    own = ok(call(capsys, "predict", model, visits, *columns, "--client", "south"))
    assert "(30 samples)" in own or "of 30 samples)" in own


def test_strange_and_missing_columns_and_clients_are_refused(
    capsys: pytest.CaptureFixture[str], ward: tuple[Path, Path], tmp_path: Path
) -> None:
    model, visits = ward
    table, new = pd.read_csv(visits), tmp_path / "new.csv"
    columns = ["--label", "outcome", "--client-column", "ward"]
    table.rename(columns={"age": "Age"}).to_csv(new, index=False)
    said = refused(capsys, model, new, *columns)
    assert "the model's input 'age' is missing; 'Age' is no input of the model" in said
    assert "'ward' is no input of the model; rename or remove" in refused(capsys, model, visits, "--label", "outcome")
    assert "did you mean 'south'?" in refused(capsys, model, visits, *columns, "--client", "South")
    said = refused(capsys, model, visits, *columns[:2], "--client-column", "word")
    assert "did you mean 'ward'?" in said
    table.drop(columns="ward").to_csv(new, index=False)
    assert "name --client-column" in refused(capsys, model, new, *columns[:2], "--client", "south")
    assert "names a column of a table" in refused(capsys, model, tmp_path / "run", "--client-column", "ward")
