// The page: a heading, the comparison if there are several runs, then one run at a time.

const content = JSON.parse(document.getElementById('content').textContent);
const place = document.getElementById('page');

function section(parent, title, kind = 'grid') {
  const grid = make('div', { class: kind });
  parent.append(make('h2', {}, title), grid);
  return grid;
}
function listed(parent, title, texts, kind = 'card wrong') {
  if (texts.length) parent.append(make('div', { class: kind }, make('h3', {}, title), make('ul', {}, ...texts.map((text) => make('li', {}, text)))));
}
function tiles(parent, run) {
  const last = (values) => values[values.length - 1];
  const shown = [];
  for (const [moment, one] of Object.entries(run.curves)) shown.push([score(run.metric, last(one.mean)), `${run.metric.name} ${moment}, mean of round ${last(one.rounds)} (best ${score(run.metric, one.best)})`]);
  if (run.curves.received) shown.push([score(run.metric, last(run.curves.received.worst)), 'worst tenth of the clients, received']);
  if (run.cost.rounds.length) {
    shown.push([bytes(run.cost.total_bytes), 'up and down, all clients and rounds']);
    if (run.cost.effort) shown.push([run.cost.effort, 'gradients, per client and round']);
    shown.push([seconds(run.cost.total_seconds), `for ${run.cost.rounds.length} rounds`]);
  }
  parent.append(make('div', { class: 'tiles' }, ...shown.map(([value, text]) => make('div', { class: 'tile' }, make('b', {}, value), make('span', {}, text)))));
}
const table = (rows) => make('table', { class: 'texts' }, make('tbody', {}, ...rows.map((row) => make('tr', {}, ...row.map((text) => make('td', {}, text))))));

function oneRun(parent, run) {
  const options = run.options.map(([key, value]) => `${key} = ${value}`).join(', ');
  parent.append(make('p', { class: 'soft' }, [`${run.method}${options ? ` (${options})` : ''} on ${run.data}`, `${run.everybody} clients`, `seed ${run.seed}`, run.state].join(' · ')));
  tiles(parent, run);
  listed(parent, 'What went wrong', run.wrong);
  const rounds = section(parent, 'Over the rounds', 'grid thirds');
  if (Object.keys(run.curves).length) runCurves(rounds, run);
  else rounds.append(make('div', { class: 'card' }, 'No round was tested: there are no curves of scores.'));
  trainingCurve(rounds, run);
  const people = section(parent, 'The clients');
  clientRows(people, run);
  bubbles(people, run);
  if (run.counts === null) people.append(make('div', { class: 'card' }, `The partition by classes is not shown: ${run.why}.`));
  runQuality(section(parent, 'The finished models'), run);
  parent.append(make('h2', {}, 'Who learns from whom'));
  learning(parent, run);
  if (run.cost.rounds.length) {
    const cost = section(parent, 'What it cost');
    bytesMoved(cost, run);
    secondsTaken(cost, run);
  }
  parent.append(make('h2', {}, 'How it was run'));
  listed(parent, 'How clients were tested', run.tested, 'card');
  listed(parent, 'Notes on the partition', run.notes, 'card');
  if (run.origin.length) parent.append(make('div', { class: 'card' }, make('h3', {}, 'Where it comes from'), table(run.origin)));
  parent.append(make('details', { class: 'card' }, make('summary', {}, 'Configuration'), make('div', { class: 'columns' }, table([...run.options.map(([key, value]) => [`set.${key}`, value]), ...run.config]))));
}

place.replaceChildren(make('header', {}, make('div', {}, make('h1', {}, content.title), make('p', { class: 'soft' }, `Coterie ${content.version}`)), schemeSwitch()));
listed(place, 'Not everything could be shown', content.notes);
if (content.search) {
  searchTable(place, content.search);
  if (content.search.options.length) searched(section(place, 'What validation says'), content.search);
}
if (content.comparison) {
  comparisonTable(place, content.comparison);
  const compared = section(place, 'The methods compared');
  for (const part of [methodCurves, againstBytes, againstSeconds]) part(compared, content.comparison);
  gains(section(place, 'Who gained, who lost'), content.comparison);
  methodsQuality(section(place, 'The finished models compared'), content.comparison);
}
const run = make('section', { id: 'run' });
if (content.runs.length > 1) {
  const choose = make('select', { id: 'runs', 'aria-label': 'run' }, ...content.runs.map((one, i) => make('option', { value: i }, `${one.name}: ${one.method}, seed ${one.seed}`)));
  choose.addEventListener('change', () => { run.replaceChildren(); oneRun(run, content.runs[Number(choose.value)]); });
  place.append(make('h2', {}, 'One run'), make('div', { class: 'controls' }, choose));
}
place.append(run, tip);
// Paper has nothing to click on.
window.addEventListener('beforeprint', () => { for (const one of document.querySelectorAll('details')) one.open = true; });
// The first in which clients choose whom to learn from has most to show.
const first = Math.max(0, content.runs.findIndex((one) => one.learning.some((track) => track.chosen)));
if (content.runs.length > 1) document.getElementById('runs').value = first;
oneRun(run, content.runs[first]);
