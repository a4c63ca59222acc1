"""Every mistake ends in one line on stderr, exit code 2, and nothing on disk or on stdout."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest
from cli_tools import SMALL, call

from coterie.options import option_fields
from coterie.setup.run_options import RunOptions


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    good = [f"{i}.0,{i % 7},{i % 3},{'xyz'[i % 3]}" for i in range(60)]

    def table(name: str, *rows: str) -> None:
        (tmp_path / name).write_text("\n".join(["a,b,label,client", *rows]) + "\n")

    table("good.csv", *good)
    table("nan.csv", *good, "nan,1,0,x")
    table("one_class.csv", *(f"{i}.0,1,0,x" for i in range(20)))
    table("negative.csv", *good, "1,1,-1,x")
    table("lonely.csv", *good, "1,1,0,w")
    np.savez(tmp_path / "nan.npz", x=np.array([[1.0], [np.nan]]), y=np.array([0, 1]))
    np.savez(tmp_path / "part.npz", train=[0, 1], train_offsets=[0, 2], test=[1797], test_offsets=[0, 1])
    (tmp_path / "wards.csv").write_text("a,ward,label\n1,north,0\n2,south,1\n")
    (tmp_path / "broken.toml").write_text("method = \n")
    (tmp_path / "typo.toml").write_text('methd = "fedavg"\n')
    (tmp_path / "value.toml").write_text('method = "fedavg"\nrounds = "many"\n')
    (tmp_path / "wrong_set.toml").write_text('method = "fedavg"\nset = 3\n')
    (tmp_path / "list.toml").write_text('method = "fedavg"\nlr = [0.1]\n')
    (tmp_path / "infinite.toml").write_text('method = "fedavg"\nlr = inf\n')
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "config.toml").write_text('method = "fedavg"\n')
    return tmp_path


MISTAKES = {
    "runn fedavg": "unknown command 'runn'; did you mean 'run'? (allowed: benchmark, check, compare, completion,",
    "run fedpre": "unknown method 'fedpre'; did you mean 'fedrep'? (allowed: apfl",
    "run": "method: name one (allowed: apfl",
    "run fedavg fedper": "'fedper': run takes no further argument",
    "run fedavg --alhpa 1": "unknown option '--alhpa'; did you mean '--alpha'? ('coterie run --help-all' lists them)",
    "run fedavg --zzz": "unknown option '--zzz'; ('coterie run --help-all' lists them)",
    "run fedavg --rounds": "--rounds needs a value",
    "run fedavg --rounds 3 --rounds 4": "--rounds is given twice",
    "run fedavg --rounds three": "rounds = 'three': must be a whole number",
    "run fedavg --rounds 2.7": "rounds = '2.7': must be a whole number",
    "run fedavg --lr fast": "lr = 'fast': must be a number",
    "run fedavg --cap=maybe": "cap = 'maybe': must be true or false",
    "run fedavg --stats median": "stats = 'median': must be one of mean, local",
    "run fedavg --alpha 0": "alpha = 0: must be greater than 0",
    "run fedavg --alpha -1": "alpha = -1: must be greater than 0",
    "run fedavg --alpha nan": "alpha = 'nan': must be a number, finite",
    "run fedavg --join 1.5": "join = 1.5: must be greater than 0 and at most 1",
    "run fedavg --seed -1": "seed = -1: must not be negative",
    "run fedavg --clients 5000": "clients = 5000: must be at most 1797, the samples in data 'digits'",
    "run fedavg --held-out 30": "held_out = 30: must be a number of clients from 0 to 19",
    "run fedavg --partition iid --alpha 1": "partition 'iid' has no option 'alpha' (it has: clients)",
    "run fedavg --partition dirichle": "unknown partition 'dirichle'; did you mean 'dirichlet'?",
    "run fedavg --partition nowhere.npz": "nowhere.npz: there is no such file; a bare name is also looked for in",
    "run fedavg --partition nan.npz": "has no array 'train, train_offsets, test, test_offsets'",
    "run fedavg --partition part.npz": "part.npz': client '0': test names sample [1797], but data 'digits'",
    "run fedavg --partition part.npz --clients 3": "partition 'part.npz' has no option 'clients' (it has: none)",
    "run fedavg --partition extended_dirichlet --clients 2": "2 clients hold at most 4 of the 10 classes",
    "run fedavg --partition-seed -1": "partition_seed = -1: must not be negative",
    "run fedavg --model-seed one": "model_seed = 'one': must be a whole number",
    "run fedavg --scale published": "scale = published: data 'digits' has no published scale (cifar10 has)",
    "run fedavg --lr inf": "lr = 'inf': must be a number, finite and at most 3.4e38",
    "run fedavg --lr 1e308": "lr = '1e308': must be a number, finite and at most 3.4e38",
    "run fedavg --alpha inf": "alpha = 'inf': must be a number, finite",
    "run fedavg --quarantine inf": "quarantine = 'inf': must be a number, finite",
    "run fedprox --set mu=inf": "mu = 'inf': must be a number, finite",
    "run fedavg --batch 9223372036854775808": "batch = '9223372036854775808': must be a whole number, below 2**63",
    "run fedavg --seed 9223372036854775808": "seed = '9223372036854775808': must be a whole number, below 2**63",
    "run fedavg --threads 100000": "threads = 100000: must be at most",
    "run fedavg --engine processes --workers 100000": "workers = 100000: must be at most",
    "run --config list.toml": "lr = [0.1]: must be a number",
    "run --config infinite.toml": "lr = inf: must be a number, finite",
    "run fedavg --scale wide": "scale = wide: must be none, standard, range or published",
    "run fedavg --data digts": "unknown data set 'digts'; did you mean 'digits'?",
    "run fedavg --data nowhere.csv": "data 'nowhere.csv': there is no such file or folder",
    "run fedavg --data nan.csv": "column 'a' of nan.csv is empty, NaN or infinite in row 61",
    "run fedavg --data nan.npz": "sample 1 holds NaN or infinite values",
    "run fedavg --data one_class.csv": "data 'one_class': 1 class; at least 2 are needed",
    "run fedavg --data negative.csv": "label -1 of sample 60: labels count from 0",
    "run fedavg --data good.csv --label lable": "unknown column of good.csv 'lable'; did you mean 'label'?",
    "run fedavg --data good.csv --client clinet": "unknown column of good.csv 'clinet'; did you mean 'client'?",
    "run fedavg --data wards.csv --client north": "client = north: must be the column that says whose a sample is, and "
    "'north' stands in column 'ward' of wards.csv; name that one",
    "run fedavg --client site": "client = site: is for your own data, not for 'digits'",
    "run fedavg --data lonely.csv --partition by_client": "client 'w' has no test samples",
    "run fedavg --data good.csv --model cnn": "model 'cnn' takes inputs of shape (channels, height, width)",
    "run fedavg --model mpl": "unknown model 'mpl'; did you mean 'mlp'?",
    "run fedavg --classifier nope": "unknown classifier module 'nope' (allowed: classifier, features",
    "run fedavg --engine qick": "unknown engine 'qick'",
    "run fedavg --optimizer sdg": "unknown optimizer 'sdg'; did you mean 'sgd'?",
    "run fedavg --set mu=1": "unknown option of fedavg 'mu' (allowed: none)",
    "run fedprox --set m=1": "unknown option of fedprox 'm'; did you mean 'mu'? (allowed: mu)",
    "run fedprox --set mu": "set = 'mu': must be NAME=VALUE or METHOD.NAME=VALUE",
    "run fedprox --set mu=much": "mu = 'much': must be a number",
    "run fedprox --set fedavg.mu=1": "unknown method in set 'fedavg' (allowed: fedprox)",
    "run --config nowhere.toml": "config = nowhere.toml: there is no such file",
    "run --config broken.toml": "config = broken.toml: not a TOML file",
    "run --config typo.toml": "unknown option 'methd'; did you mean 'method'?",
    "run --config value.toml": "rounds = 'many': must be a whole number",
    "run --config wrong_set.toml": "set = 3: must be a table of method options",
    "run fedavg --out taken": "out = taken: already holds a run",
    "run fedavg --out good.csv": "out = good.csv: is a file; name a directory",
    "compare": "methods: name at least one",
    "compare local local": "method 'local' is given twice",
    "compare local fedavgg": "unknown method 'fedavgg'; did you mean 'fedavg'?",
    "compare local --seeds": "seeds: name at least one",
    "compare local --seeds 1 1": "seeds = 1 1: one is given twice",
    "compare local --seeds 0 x": "seeds = 'x': must be a whole number",
    "compare local --seed 3": "unknown option '--seed'; did you mean '--seeds'?",
    "compare local fedprox --set m=1": "unknown option of local, fedprox 'm'; did you mean 'mu'?",
    "compare local fedprox --set local.mu=1": "unknown option of local 'mu' (allowed: none)",
    "compare local fedprox --out taken": "out = taken: already holds a run",
    "compare local --checkpoint-every 1": "checkpoint_every = 1: a checkpoint needs an output directory",
    "resume": "resume needs RUN",
    "resume nowhere": "run = nowhere: there is no such file or folder",
    "show nowhere": "run = nowhere: there is no such file or folder",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_mistake(folder: Path, capsys: pytest.CaptureFixture[str], line: str) -> None:
    before = sorted(folder.rglob("*"))
    answer = call(capsys, *shlex.split(line))
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.startswith("coterie: error: ")
    assert MISTAKES[line] in answer.err
    assert answer.err.count("\n") == 1
    assert sorted(folder.rglob("*")) == before


@pytest.mark.thorough
@pytest.mark.parametrize("value", ["[1]", "{ a = 1 }", "2020-01-01", "inf", '"\\u0000"'])
def test_a_value_of_the_wrong_kind_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str], value: str) -> None:
    """For every setting of a configuration file."""
    for name in option_fields(RunOptions):
        rest = "" if name == "method" else 'method = "fedavg"\n'
        (folder / "wrong.toml").write_text(f"{rest}{name} = {value}\n")
        answer = call(capsys, "run", "--config", "wrong.toml", "--out", "run")
        assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1), name
        assert not (folder / "run").exists()


def test_a_value_of_thousands_of_letters_is_not_said_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, "run", "fedavg", "--model", "m" * 5000)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert answer.err.startswith("coterie: error: unknown model 'mmm")
    assert "… " in answer.err
    assert len(answer.err) < 2100


def test_a_finished_run_is_not_resumed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "run", "local", *SMALL, "--out", "done").code == 0
    answer = call(capsys, "resume", "done")
    assert (answer.code, answer.err) == (
        2,
        "coterie: error: run = done: is finished; there is nothing to resume, but more rounds can be added\n",
    )
