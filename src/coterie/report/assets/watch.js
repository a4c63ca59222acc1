// The page that follows runs: asks every other second how far they are.

const EVERY = 2000;
const home = document.getElementById('page');
const heading = make('p', { class: 'soft' }, 'Looking for runs…');
const list = make('tbody');
const chosen = make('section', { id: 'run' });
let name = null;

const ago = (since) => seconds(Math.max(0, Math.round(Date.now() / 1000 - since)));
function standing(run) {
  if (run.state) return run.state;
  if (!run.done) return 'begun';
  return `last round ${ago(run.written)} ago`;
}
function spark({ rounds, mean }) {
  const svg = canvas(120, 26);
  const x = extent(rounds), y = extent(mean, 0.1);
  const points = rounds.map((round, i) => [2 + ((round - x[0]) / (x[1] - x[0] || 1)) * 116, known(mean[i]) ? 24 - ((mean[i] - y[0]) / (y[1] - y[0] || 1)) * 22 : null]);
  svg.append(draw('path', { d: path(points), fill: 'none', stroke: 'var(--s0)', 'stroke-width': 1.8 }));
  return svg;
}
function row(run) {
  const choose = make('button', { type: 'button' }, run.name);
  choose.addEventListener('click', async () => { name = run.name; await details(); chosen.scrollIntoView({ behavior: 'smooth' }); });
  const bar = make('progress', { max: Math.max(run.planned, 1), value: run.done });
  const last = run.curve.mean[run.curve.mean.length - 1];
  return make('tr', {}, ...[choose, `${run.method}, seed ${run.seed}`, run.data, make('span', {}, bar, ` ${run.done} of ${run.planned}`), standing(run), score(run.metric, last), spark(run.curve)].map((cell) => make('td', {}, cell)));
}

async function details() {
  if (name === null) return;
  const answer = await fetch(`/run?name=${encodeURIComponent(name)}`);
  if (!answer.ok) return;
  const run = await answer.json();
  const top = window.scrollY;
  const grid = make('div', { class: 'grid' });
  chosen.replaceChildren(make('h2', {}, run.name), grid);
  const all = Object.values(run.curves).flatMap((one) => [...one.mean, ...one.worst]);
  for (const [moment, one] of Object.entries(run.curves)) {
    figure(grid, {
      title: `${capital(run.metric.name)} ${MOMENTS[moment]}`,
      legend: [[lineMark('var(--s0)'), 'mean over clients'], [lineMark('var(--s1)', '5 4'), 'worst tenth, mean']],
      how: 'How to read: the rounds so far; the page looks for more every other second.',
    }, (width) => lines(width, 250, {
      series: [{ label: 'mean', xs: one.rounds, ys: one.mean, colour: 'var(--s0)' }, { label: 'worst tenth', xs: one.rounds, ys: one.worst, colour: 'var(--s1)', dash: '5 4', thin: true }],
      y: scoreRange(run.metric, all), xTitle: 'round', yTitle: titled(run.metric), yText: plainScore(run.metric),
    }));
  }
  if (run.learning) {
    const { learning: track, clients } = run;
    const shown = { clients, order: clients.map((_, k) => k) };
    figure(grid, {
      title: `Who learns from whom in round ${track.rounds[0]}: ${track.group}, into ${track.target}`,
      how: 'How to read: row i shows from whom client i learned, and how much. Clients stand in their own order; the run’s report orders them by their classes.',
    }, (width) => matrix(width, shown, {
      value: (i, j) => weightOf(track, 0, clients.length, i, j), most: largest(track, clients.length), rowTitle: 'learns', columnTitle: 'from',
      tell: (i, j, found) => `client ${clients[i]} from client ${clients[j]}: ${known(found) ? `${(100 * found).toFixed(2)} %` : 'took no part'}`,
    }));
  }
  grid.append(make('div', { class: 'card' }, make('h3', {}, 'The end of its log'), make('pre', {}, run.log.join('\n') || 'It is empty.')));
  window.scrollTo(0, top);
}

async function look() {
  try {
    const { folder, runs } = await (await fetch('/runs')).json();
    heading.textContent = `${runs.length} runs in ${folder}, ${runs.filter((run) => run.state === 'finished').length} finished`;
    list.replaceChildren(...runs.map(row));
    const current = JSON.stringify(runs.find((run) => run.name === name));
    if (current !== look.before) { look.before = current; await details(); }
  } catch (error) {
    heading.textContent = 'The server has ended: coterie watch starts it again.';
  }
  setTimeout(look, EVERY);
}

const titles = ['run', 'method', 'data', 'rounds', 'state', 'received, mean', 'so far'];
home.replaceChildren(
  make('header', {}, make('div', {}, make('h1', {}, 'Runs'), heading), schemeSwitch()),
  make('div', { class: 'card scroll tall' }, make('table', { class: 'texts runs' }, make('thead', {}, make('tr', {}, ...titles.map((title) => make('th', {}, title)))), list)),
  chosen, tip);
look();
