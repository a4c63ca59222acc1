// Who learns from whom: the matrix of a round beside the true overlap, with a slider over the rounds.

const PARTS = 10000;

/** A round's weight that client i gives to client j; none if one of them took no part. */
function weightOf(track, t, clients, i, j) {
  const held = track.weights[t];
  const value = held.length === clients ? held[j] : held[i * clients + j];
  return value < 0 ? null : value / PARTS;
}

/** The largest weight that a client gave to another in any round; if nobody did, the largest of all. */
function largest(track, clients) {
  let [others, all] = [0, 0];
  for (const held of track.weights) {
    held.forEach((value, at) => {
      all = Math.max(all, value);
      if (held.length === clients || at % clients !== Math.floor(at / clients)) others = Math.max(others, value);
    });
  }
  return (others || all) / PARTS || 1;
}

/** A square of cells in the clients' order; `value(i, j)` gives none for cells without one. Beside it, on wish, classes. One row of weights that all have in `alike` is drawn as one. */
function matrix(width, run, { value, most, tell, rowTitle, columnTitle, beside = false, alike = false }) {
  const names = alike ? ['everybody'] : run.order.map((k) => run.clients[k]);
  const learners = alike ? run.order.slice(0, 1) : run.order;
  const strip = beside && !alike ? Math.min(Math.max(run.classes.length * 12.5, 60), 200) : 0;
  const first = nameRoom(names) + 16;
  const left = first + (strip && strip + 10);
  const across = Math.min(width - left - 4, 560);
  const step = across / run.order.length;
  const sparse = Math.ceil(13 / step);
  const below = Math.max(...run.clients.map((name) => shortened(name, 12).length)) * 7 + 30;
  const rise = alike ? Math.max(step, 26) : step;
  const down = rise * names.length;
  const svg = canvas(Math.min(width, left + across + 4), down + below + 34);
  const gap = step > 9 ? 1 : 0;
  learners.forEach((i, row) => {
    if (row % sparse === 0) svg.append(draw('text', { class: 'name', x: first - 6, y: (row + 0.5) * rise + 4, 'text-anchor': 'end' }, shortened(names[row], 16)));
    run.order.forEach((j, column) => {
      const found = value(i, j);
      const cell = draw('rect', { x: left + column * step, y: row * rise, width: step - gap, height: rise - gap, rx: Math.min(step / 8, 3), fill: known(found) ? heatColour(found / (most || 1)) : 'var(--absent)', 'data-cell': `${i},${j}`, 'data-value': known(found) ? found : '' });
      svg.append(cell);
    });
  });
  run.order.forEach((j, column) => {
    if (column % sparse === 0) columnName(svg, run.clients[j], left + (column + 0.5) * step, down + 6, step * sparse);
  });
  if (strip) classStrip(svg, run, first, strip, step, gap);
  // One listener for all cells: there may be tens of thousands.
  svg.addEventListener('pointermove', (event) => {
    const cell = event.target.dataset.cell;
    const [i, j] = cell ? cell.split(',').map(Number) : [];
    showTip(event, cell ? tell(i, j, value(i, j)) : '');
  });
  svg.addEventListener('pointerleave', (event) => showTip(event, ''));
  if (!alike) svg.append(draw('text', { transform: `translate(11 ${down / 2}) rotate(-90)`, 'text-anchor': 'middle' }, rowTitle));
  svg.append(draw('text', { x: left + across / 2, y: down + below - 8, 'text-anchor': 'middle' }, columnTitle));
  const bar = Math.min(across, 220);
  for (let i = 0; i < 40; i += 1) svg.append(draw('rect', { x: left + (i * bar) / 40, y: down + below + 4, width: bar / 40 + 0.6, height: 9, fill: heatColour(i / 39) }));
  ['0', plainNumber(most / 2), plainNumber(most)].forEach((text, i) => svg.append(draw('text', { x: left + (bar * i) / 2, y: down + below + 27, 'text-anchor': ['start', 'middle', 'end'][i] }, text)));
  if (across > bar + 160) svg.append(draw('text', { x: left + bar + 12, y: down + below + 13 }, 'colours follow the square root'));
  return svg;
}
/** Names in a line: the first and the last of many. */
const shortList = (names) => (names.length > 10 ? `${names.slice(0, 4).join(', ')} … ${names[names.length - 1]}` : names.join(', '));
/** The shares of classes that each client holds: the darker, the more. */
function classStrip(svg, run, left, across, rise, gap) {
  const { classes } = run;
  const step = across / classes.length;
  run.order.forEach((k, row) => {
    const sum = run.counts[k].reduce((a, b) => a + b, 0) || 1;
    run.counts[k].forEach((count, c) => {
      const share = count / sum;
      svg.append(draw('rect', { x: left + c * step, y: row * rise, width: step - Math.min(gap, step / 8), height: rise - gap, fill: 'var(--ink)', 'fill-opacity': 0.04 + 0.96 * share, 'data-share': share }));
    });
  });
  if (Math.max(...classes.map((name) => name.length)) * 7 + 4 <= step) classes.forEach((name, c) => columnName(svg, name, left + (c + 0.5) * step, run.order.length * rise + 6, step));
  svg.append(draw('text', { x: left + across / 2, y: run.order.length * rise + 36, 'text-anchor': 'middle' }, 'classes held'));
}

/** The weights of a round. `at` is where the page stands: the track, and the place of the round in it. */
function weights(parent, run, at, look = {}) {
  const clients = run.clients.length;
  const value = (i, j) => weightOf(at.track, at.t, clients, i, j);
  const absent = run.learning.some((track) => track.weights.some((one) => one.includes(-1)));
  const alike = () => clients > 1 && at.track.weights[at.t].length === clients;
  const strip = look.beside && !alike() ? [[areaMark('var(--ink)', 0.04), 'none of a client’s samples'], [areaMark('var(--ink)'), 'all of them'], [areaMark('var(--card)'), `classes from left to right: ${shortList(run.classes)}`]] : [];
  return figure(parent, {
    title: 'Who learns from whom: the weights W of the round',
    legend: [...(absent ? [[areaMark('var(--absent)'), 'took no part']] : []), ...strip],
    how: 'How to read: row i shows from whom client i learned and how much; a row sums to 1. Clients with similar classes stand together, so a method that finds them draws blocks along the diagonal. Colours follow the square root of the weight; the strongest is the largest weight between different clients, of all rounds.',
    ...look,
  }, (width) => matrix(width, run, {
    value, most: at.most || largest(at.track, clients), rowTitle: 'learns', columnTitle: alike() ? 'learns from' : 'from', beside: look.beside, alike: alike(),
    tell: (i, j, found) => `${alike() ? 'everybody' : `client ${run.clients[i]}`} from client ${run.clients[j]}, round ${at.track.rounds[at.t]}: ${known(found) ? `${(100 * found).toFixed(2)} %` : 'took no part'}${run.overlap && !alike() ? `\ntheir classes overlap by ${(100 * run.overlap[i][j]).toFixed(1)} %` : ''}`,
  }));
}
function overlapOfClasses(parent, run) {
  if (!run.overlap) return;
  figure(parent, {
    title: 'What there is to find: how much clients’ classes overlap',
    legend: [[areaMark('var(--w2)'), '1: the same shares of classes']],
    how: 'How to read: the overlap of clients i and j is Σ over classes of min(share at i, share at j), from their training samples: 1 for the same mix, 0 for no class in common. No method sees this matrix; compare it with the weights.',
  }, (width) => matrix(width, run, {
    value: (i, j) => run.overlap[i][j], most: 1, rowTitle: 'client', columnTitle: 'client',
    tell: (i, j, found) => `clients ${run.clients[i]} and ${run.clients[j]} overlap by ${(100 * found).toFixed(1)} %`,
  }));
}

function learning(parent, run) {
  if (!run.learning.length) {
    parent.append(make('div', { class: 'card' }, `There is no matrix to show: ${run.why_no_learning}.`));
    return;
  }
  const at = { track: run.learning[0], t: run.learning[0].start, most: 1 };
  const slider = make('input', { type: 'range', min: 0, 'aria-label': 'round' });
  const told = make('output');
  const play = make('button', { type: 'button' }, '▶ play');
  const choose = make('select', { 'aria-label': 'which weights' }, ...run.learning.map((track, i) => make('option', { value: i }, `${track.group}, into ${track.target}${track.gated ? ' (some elements only)' : ''}`)));
  parent.append(make('div', { class: 'controls' }, ...(run.learning.length > 1 ? [choose] : []), play, slider, told));
  const grid = make('div', { class: 'grid' });
  parent.append(grid);

  const parts = [weights(grid, run, at)];
  overlapOfClasses(grid, run);
  parts.push(graph(grid, run, at));
  parts.push(influenceBars(grid, run, at));
  if (run.overlap) parts.push(agreementCurve(grid, run, at));
  else grid.append(make('div', { class: 'card' }, `How much clients’ classes overlap is not known: ${run.why}.`));

  function update() {
    slider.value = at.t;
    told.textContent = `round ${at.track.rounds[at.t]}`;
    for (const part of parts) part.redraw();
  }
  function begin(track) {
    Object.assign(at, { track, t: track.start, most: largest(track, run.clients.length) });
    slider.max = track.rounds.length - 1;
    slider.disabled = play.disabled = track.rounds.length < 2;
    slider.title = track.rounds.length < track.recorded ? `${track.rounds.length} of ${track.recorded} recorded rounds are on this page` : '';
    update();
  }
  let timer = null;
  const stop = () => { clearInterval(timer); timer = null; play.textContent = '▶ play'; };
  play.addEventListener('click', () => {
    if (timer !== null) return stop();
    if (at.t === at.track.rounds.length - 1) at.t = 0;
    play.textContent = '❚❚ pause';
    timer = setInterval(() => {
      if (at.t >= at.track.rounds.length - 1 || !grid.isConnected) return stop();
      at.t += 1;
      update();
    }, Math.max(60, Math.min(400, 12000 / at.track.rounds.length)));
    return undefined;
  });
  slider.addEventListener('input', () => { stop(); at.t = Number(slider.value); update(); });
  choose.addEventListener('change', () => { stop(); begin(run.learning[Number(choose.value)]); });
  begin(at.track);
}

/** How well the weights follow the overlap, over the rounds. */
function agreementCurve(parent, run, at) {
  return figure(parent, {
    title: 'How well the weights follow the overlap',
    legend: [[lineMark('var(--s2)'), 'rank correlation of W with the overlap']],
    how: 'How to read: Spearman’s rank correlation over all pairs of different clients. 1: whoever is more alike is learned from more; 0: no relation; below 0: the unlike are preferred. Gaps are rounds in which all weights were equal. The dashed line marks the round shown.',
  }, (width) => {
    const { rounds, values } = at.track.agreement;
    return lines(width, Math.min(Math.max(width * 0.7, 260), 410), {
      series: [{ label: 'rank correlation', xs: rounds, ys: values, colour: 'var(--s2)' }],
      y: [Math.min(-0.2, ...values.filter(known)) - 0.02, 1.02], x: extent([...rounds, rounds[0] + 1]), marker: at.track.rounds[at.t], xTitle: 'round', yTitle: 'rank correlation, from −1 to 1', yText: (v) => (known(v) ? String(Number(v.toFixed(2))) : 'all weights equal'),
    });
  });
}
