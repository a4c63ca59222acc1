"""The page in a real browser: it draws without complaint, asks for nothing, and its controls do what they say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from browser import CHROMIUM, Tab, browser
from report_tools import CLIENTS, content_of, small_run, with_classes
from tests.compare.test_one_run import Watch

from coterie.compare.sweep import sweep
from coterie.partition import Iid, Partition, Pathological
from coterie.report import report
from coterie.report.learning import PARTS
from coterie.runs.experiment import Experiment

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.processes,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium), and there is none"),
]
CELLS = "[...document.querySelectorAll('#run figure')].find((one) => one.textContent.includes('weights W'))"
VALUES = f"[...{CELLS}.querySelectorAll('rect[data-cell]')].map((cell) => [cell.dataset.cell, cell.dataset.value])"
FIGURES = 15  # of one run
GROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    small_run(folder / "runs" / "fedrema")
    small_run(folder / "runs" / "local", "local")
    report(folder / "runs" / "fedrema", folder / "one.html")
    report(folder / "runs", folder / "several.html")
    return folder


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


# One test is run before every merge; the others are left to `make full`.
slow = pytest.mark.slow


def opened(tab: Tab, page: Path) -> None:
    """Open a page, which must ask for itself alone, and complain of nothing."""
    tab.open(page)
    assert tab.requests() == [page.resolve().as_uri()]
    assert tab.complaints() == []


def turn(tab: Tab, control: str, event: str, value: int) -> None:
    """What a visitor does with a control."""
    found = f"document.querySelector('{control}')"
    tab.ask(f"Object.assign({found}, {{ value: {value} }}).dispatchEvent(new Event('{event}'))")


def shown_weights(tab: Tab) -> dict[str, float]:
    return {cell: float(value) for cell, value in tab.ask(VALUES) if value}


def test_a_page_is_drawn_and_its_slider_moves(tab: Tab, pages: Path) -> None:
    opened(tab, pages / "one.html")
    assert tab.ask("document.querySelectorAll('figure .plot svg').length") == FIGURES
    last = shown_weights(tab)
    turn(tab, "input[type=range]", "input", 0)
    assert shown_weights(tab) != last
    assert tab.complaints() == []


@slow
@pytest.mark.parametrize("width", [390, 1280])
def test_every_figure_is_drawn_at_any_width(tab: Tab, pages: Path, width: int) -> None:
    tab.resize(width, 900)
    for name, figures in (("one.html", FIGURES), ("several.html", FIGURES + 10)):
        opened(tab, pages / name)
        assert tab.ask("document.querySelectorAll('figure').length") == figures
        assert tab.ask("[...document.querySelectorAll('figure')].every((one) => one.querySelector('.plot svg'))")
        # A title, a sentence on how to read it, and nothing that is no number.
        assert tab.ask("[...document.querySelectorAll('figure')].every((one) => one.querySelector('h3').textContent)")
        captions = tab.ask("[...document.querySelectorAll('figcaption')].map((one) => one.textContent)")
        assert all(caption.startswith("How to read: ") for caption in captions)
        drawn = tab.ask("document.getElementById('page').innerHTML")
        assert "NaN" not in drawn
        assert "undefined" not in drawn
        assert tab.ask("document.documentElement.scrollWidth <= innerWidth")


@slow
def test_the_slider_changes_the_matrix_and_play_moves_it(tab: Tab, pages: Path) -> None:
    opened(tab, pages / "one.html")
    track = content_of((pages / "one.html").read_text(encoding="utf-8"))["runs"][0]["learning"][0]
    assert track["weights"][0] != track["weights"][-1]
    for place in (0, len(track["rounds"]) - 1):
        turn(tab, "input[type=range]", "input", place)
        weights = track["weights"][place]
        rows = weights * CLIENTS if len(weights) == CLIENTS else weights
        assert shown_weights(tab) == {
            f"{i},{j}": pytest.approx(rows[i * CLIENTS + j] / PARTS) for i in range(CLIENTS) for j in range(CLIENTS)
        }
        assert tab.ask("document.querySelector('output').textContent") == f"round {track['rounds'][place]}"
    # Play begins again at the first round, and stops at the last.
    tab.ask("document.querySelector('.controls button').click()")
    ended = "document.querySelector('.controls button').textContent.includes('play')"
    assert not tab.ask(ended)
    tab.ask(f"new Promise((done) => {{ const wait = () => {ended} ? done(1) : setTimeout(wait, 20); wait(); }})")
    assert tab.ask("document.querySelector('output').textContent") == f"round {track['rounds'][-1]}"
    assert tab.complaints() == []


@slow
def test_another_run_and_another_group_can_be_chosen(tab: Tab, pages: Path) -> None:
    opened(tab, pages / "several.html")
    before = shown_weights(tab)
    turn(tab, "#run .controls select", "change", 1)
    assert shown_weights(tab) != before
    turn(tab, "#runs", "change", 1)
    assert "nobody learned from others" in tab.ask("document.getElementById('run').textContent")
    assert tab.complaints() == []


@slow
def test_calibration_of_one_client_and_a_table_in_another_order(tab: Tab, pages: Path) -> None:
    opened(tab, pages / "several.html")
    curve = "[...document.querySelectorAll('#run figure')].find((one) => one.textContent.includes('what confidence'))"
    before = tab.ask(f"{curve}.querySelector('.plot').innerHTML")
    choose = f"Object.assign({curve}.querySelector('select'), {{ value: 3 }}).dispatchEvent(new Event('change'))"
    tab.ask(choose)
    assert tab.ask(f"{curve}.querySelector('.plot').innerHTML") != before
    rows = "[...document.querySelectorAll('#page > .card tbody tr')].map((row) => row.cells[2].textContent)"
    shown = []
    for _ in range(2):
        tab.ask("document.querySelectorAll('th .sort')[2].click()")
        shown.append([float(text.strip(" *")) for text in tab.ask(rows)])
    assert shown == [sorted(shown[0]), sorted(shown[0], reverse=True)]
    assert tab.complaints() == []


@slow
def test_pointing_at_a_cell_tells_who_learns_from_whom(tab: Tab, pages: Path) -> None:
    opened(tab, pages / "one.html")
    cell = f"{CELLS}.querySelector('[data-cell=\"1,2\"]')"
    tab.ask(f"{cell}.dispatchEvent(new PointerEvent('pointermove', {{ bubbles: true, clientX: 9, clientY: 9 }}))")
    told = tab.ask("document.getElementById('tip').textContent")
    assert told.startswith("client 1 from client 2, round ")
    assert "their classes overlap by" in told


@slow
@pytest.mark.parametrize("clients", [1, 2, 201])
def test_few_clients_and_many(tab: Tab, tmp_path: Path, clients: int) -> None:
    run = small_run(tmp_path / "run", "fedavg", rounds=1, partition=Iid(clients=clients), batch=50)
    opened(tab, report(run, tmp_path / "report.html"))
    shown = tab.ask("document.getElementById('run').textContent")
    assert "NaN" not in tab.ask("document.getElementById('run').innerHTML")
    assert ("201 clients are too many for a matrix" in shown) == (clients == 201)


@slow
def test_both_colour_schemes(tab: Tab, pages: Path) -> None:
    grounds = {}
    for scheme in ("light", "dark"):
        tab.prefer(scheme)
        opened(tab, pages / "one.html")
        grounds[scheme] = tab.ask(GROUND)
    assert grounds["light"] != grounds["dark"]
    tab.ask("document.getElementById('scheme').click()")
    assert tab.ask(GROUND) == grounds["light"]
    tab.ask("document.getElementById('scheme').click()")
    assert tab.ask(GROUND) == grounds["dark"]


@slow
def test_texts_of_a_run_stay_texts(tab: Tab, tmp_path: Path) -> None:
    evil = "</script><script>window.sprung = 1</script><img src=x onerror='window.sprung = 2'>"
    drawn = Pathological(clients=4)(Experiment().prepare().data, seed=0)
    named = Partition(drawn.train, drawn.test, names=(evil, "b", "c", "d"), notes=(evil,))
    Experiment("fedavg", partition=named, rounds=1, epochs=1, threads=1).run(tmp_path / "run")
    counts = [[3, 1], [1, 3], [2, 2], [4, 0]]
    with_classes(tmp_path / "run", counts, [evil, "x"])
    opened(tab, report(tmp_path / "run", tmp_path / "report.html"))
    assert tab.ask("window.sprung") is None
    assert tab.ask("document.querySelectorAll('img').length") == 0
    assert evil in tab.ask("document.getElementById('run').textContent")


@slow
def test_a_search_leads_with_what_validation_says(tab: Tab, tmp_path: Path) -> None:
    rates = ("0.0001", "0.01", "0.1", "0.3")
    few = {"partition": Iid(clients=3), "rounds": 2, "epochs": 1, "threads": 1}
    tried = {f"fedavg:lr={rate}": Experiment("fedavg", lr=float(rate), **few) for rate in rates}
    found = sweep(tried, [0], tmp_path / "search", lambda runs: nullcontext(Watch()), jobs=1)
    report(tmp_path / "search", tmp_path / "it.html")
    opened(tab, tmp_path / "it.html")
    assert tab.ask("document.querySelector('h1').textContent") == "FedAvg on digits: 4 settings tried"
    figure = "[...document.querySelectorAll('figure')].find((one) => one.textContent.includes('by lr'))"
    assert tab.ask(f"{figure}.querySelectorAll('.plot circle').length") == 4
    first = "document.querySelector('table tbody tr').firstChild.textContent"
    assert tab.ask(first) == f"{found.best.name} ★"
    tab.ask("document.querySelectorAll('table th .sort')[1].click()")
    assert tab.ask(first).startswith("fedavg:lr=0.0001")
    assert tab.complaints() == []


@slow
def test_figures_side_by_side_begin_at_the_same_height(tab: Tab, pages: Path) -> None:
    tab.resize(1280, 900)
    opened(tab, pages / "one.html")
    top = "Math.round(one.getBoundingClientRect().top)"
    tops = tab.ask(f"[...document.querySelectorAll('.thirds figure .plot')].map((one) => {top})")
    assert len(tops) == 3
    assert len(set(tops)) == 1


@slow
def test_paper_shows_the_configuration(tab: Tab, pages: Path) -> None:
    opened(tab, pages / "one.html")
    assert not tab.ask("document.querySelector('details').open")
    tab.ask("window.dispatchEvent(new Event('beforeprint'))")
    assert tab.ask("[...document.querySelectorAll('details')].every((one) => one.open)")
