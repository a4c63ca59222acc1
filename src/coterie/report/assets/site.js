// A site's own page: how its model does, whether taking part pays, what each round took. For its own eyes alone.

const MODELS = {
  received: ['the federation’s model, as it comes', 'var(--s0)', ''],
  trained: ['the same after training here', 'var(--s6)', '2 3'],
  alone: ['a model that trained here alone', 'var(--s1)', ''],
  shared: ['the model that all sites share', 'var(--s2)', '6 4'],
};
const SHORT = { received: 'federation', trained: 'trained here', alone: 'alone', shared: 'shared' };
const METRICS = [
  ['accuracy', 'accuracy', share, 'right answers'],
  ['auc', 'AUROC', share, 'pairs of samples ranked right, mean over classes'],
  ['sensitivity', 'sensitivity', share, 'samples of a class that are recognised, mean over classes'],
  ['calibration_error', 'calibration error', share, 'how far confidence is off; smaller is better'],
  ['loss', 'loss', (value) => (known(value) ? value.toPrecision(3) : '–'), 'smaller is better'],
];
/** How many rounds of training here a score of an entry has behind it. */
const behind = (entry, model) => (entry.finished || model === 'trained' ? entry.round : entry.round - 1);

/** The gain in points with its interval, around zero. */
function interval(width, gain, colour) {
  const height = 74;
  const most = Math.max(Math.abs(gain.low), Math.abs(gain.high), 1) * 1.12;
  const svg = canvas(width, height);
  const px = (value) => 24 + ((value + most) / (2 * most)) * (width - 48);
  svg.append(draw('line', { class: 'axis strong', x1: 12, x2: width - 12, y1: 34, y2: 34 }));
  for (const at of ticks([-most, most], Math.max(2, width / 110))) {
    svg.append(draw('line', { class: 'axis', x1: px(at), x2: px(at), y1: 30, y2: 38 }));
    svg.append(draw('text', { x: px(at), y: 56, 'text-anchor': 'middle' }, at === 0 ? '0' : `${at > 0 ? '+' : '−'}${Math.abs(at)}`));
  }
  svg.append(draw('line', { x1: px(0), x2: px(0), y1: 10, y2: 42, stroke: 'var(--ink)', 'stroke-width': 1.4 }));
  svg.append(draw('rect', { x: px(gain.low), y: 27, width: Math.max(px(gain.high) - px(gain.low), 2), height: 14, rx: 7, fill: colour, 'fill-opacity': 0.3 }));
  svg.append(draw('circle', { cx: px(gain.points), cy: 34, r: 8, fill: colour, stroke: 'var(--card)', 'stroke-width': 2.5 }));
  svg.append(draw('text', { x: 12, y: 14 }, 'alone is better'));
  svg.append(draw('text', { x: width - 12, y: 14, 'text-anchor': 'end' }, 'taking part is better'));
  svg.append(draw('text', { x: width / 2, y: 72, 'text-anchor': 'middle' }, 'points of accuracy'));
  return svg;
}

function verdict(state) {
  const newest = [...state.entries].reverse().find((entry) => entry.gain || entry.no_baseline);
  if (!newest) return make('div', { class: 'card' }, make('h3', {}, 'Does taking part pay?'), make('p', { class: 'soft' }, 'The first comparison comes with the first round.'));
  if (!newest.gain) return make('div', { class: 'card' }, make('h3', {}, 'Does taking part pay?'), make('p', { class: 'soft' }, `There is nothing to compare with: ${newest.no_baseline}.`));
  const { gain } = newest;
  const kind = !gain.clear ? 'open' : gain.points > 0 ? 'good' : 'bad';
  const colour = { open: 'var(--soft)', good: 'var(--good)', bad: 'var(--wrong)' }[kind];
  const headline = { open: 'It is not clear yet whether taking part pays', good: `Taking part gains you ${points(gain.points)} points`, bad: `Taking part costs you ${points(gain.points)} points` }[kind];
  const card = make('section', { class: `verdict ${kind}` });
  const text = make('div', {}, make('h2', {}, headline), make('p', { class: 'said' }, `${gain.clear ? '' : `${points(gain.points)} points so far. `}95 % interval ${points(gain.low)} to ${points(gain.high)} points of accuracy, on ${gain.samples} held-out samples.`),
    make('p', { class: 'soft' }, `${newest.finished ? 'The finished model' : 'The model that the federation gives this site'}, against one that trained here alone: the same first weights, samples and number of steps, ${behind(newest, 'received')} rounds of them. The interval is about these held-out samples, not about chance in training.`));
  const plot = make('div', { class: 'plot' });
  card.append(text, plot);
  new ResizeObserver(([entry]) => { const width = Math.floor(entry.contentRect.width); if (width > 0) plot.replaceChildren(interval(width, gain, colour)); }).observe(plot);
  return card;
}

/** Whether the model that a site receives is the one that all share. */
const sharedIsReceived = (state) => state.entries.every((entry) => !entry.shared || (entry.shared.accuracy === entry.received.accuracy && entry.shared.loss === entry.received.loss));

function curvesOf(parent, state) {
  const series = Object.entries(MODELS).filter(([model]) => model !== 'shared' || !sharedIsReceived(state)).map(([model, [label, colour, dash]]) => {
    const told = state.entries.filter((entry) => entry[model]);
    return { label: SHORT[model], long: label, colour, dash, thin: model === 'trained', xs: told.map((entry) => behind(entry, model)), ys: told.map((entry) => entry[model].accuracy) };
  }).filter((one) => one.xs.length);
  if (!series.length) return;
  figure(parent, {
    title: 'Accuracy on this site’s held-out samples',
    legend: series.map((one) => [lineMark(one.colour, one.dash), one.long]),
    how: 'How to read: to the right, rounds of training behind a model. Where the first line lies above that of the model that trained alone, others have helped.',
  }, (width) => lines(width, 300, { series, y: scoreRange(ACCURACY, series.flatMap((one) => one.ys)), xTitle: 'round', yTitle: titled(ACCURACY), yText: plainScore(ACCURACY) }));
}

function details(parent, state) {
  const { newest } = state;
  const same = sharedIsReceived(state);
  const there = ['received', 'alone', 'shared'].filter((model) => newest[model] && (model !== 'shared' || !same));
  const rows = METRICS.filter(([key]) => known(newest.received[key])).map(([key, name, text, meaning]) => [
    make('span', {}, make('b', {}, name), make('span', { class: 'meaning' }, meaning)), ...there.map((model) => text(newest[model][key])),
  ]);
  parent.append(make('figure', {}, make('h3', {}, `On ${newest.test_samples} held-out samples`), table(['', ...there.map((model) => SHORT[model])], rows, 'models'), make('figcaption', {}, `Held-out samples were never trained on here. ${same && newest.shared ? 'This method’s model is the one that all sites share.' : ''}`)));
  if (newest.received.recall) {
    const seen = newest.received.support.map((count, c) => (count ? c : -1)).filter((c) => c >= 0);
    const classes = seen.map((c) => state.class_names[c] || String(c));
    figure(parent, {
      title: 'Sensitivity: which classes are recognised',
      how: 'How to read: of the held-out samples of a class, the share that a model recognises, in %. Few samples make a coarse number; classes without any here are left out.',
    }, (width) => shareGrid(width, {
      rows: classes, columns: there.map((model) => SHORT[model]), columnTitle: '',
      value: (i, j) => newest[there[j]].recall[seen[i]],
      tell: (i, j, found) => `class ${classes[i]}, ${SHORT[there[j]]}: ${percent(found)} of ${newest.received.support[seen[i]]} samples`,
    }));
  }
  const sure = there.filter((model) => model !== 'shared' && newest[model].reliability);
  if (sure.length) {
    figure(parent, {
      title: 'Calibration: what confidence is worth',
      legend: sure.map((model) => [lineMark(MODELS[model][1]), `${SHORT[model]}, error ${percent(newest[model].calibration_error)}`]),
      how: 'How to read: on the dashed line, of the answers given with 80 % confidence 80 % are right. Below it, a model is surer than it should be. Large dots are many samples.',
    }, (width) => reliabilityPlot(width, sure.map((model) => ({ label: SHORT[model], colour: MODELS[model][1], ...newest[model].reliability })), 310));
  }
}

function rounds(state) {
  const told = [...state.entries].reverse().slice(0, 30);
  const rows = told.map((entry) => [
    entry.finished ? 'end' : String(entry.round), ago(entry.time), share(entry.received && entry.received.accuracy), share(entry.trained && entry.trained.accuracy), share(entry.alone && entry.alone.accuracy),
    entry.seconds ? seconds(entry.seconds.own) : '–', entry.seconds && known(entry.seconds.baseline) ? seconds(entry.seconds.baseline) : '–',
    entry.bytes ? bytes(entry.bytes.down) : '–', entry.bytes ? bytes(entry.bytes.up) : '–', entry.diverged ? 'training diverged' : '',
  ]);
  return make('div', { class: 'card' }, table(['round', 'when', 'before', 'after', 'alone', 'own work', 'baseline', 'came in', 'went out', ''], rows, 'rounds'));
}

follow((state) => {
  const last = state.entries[state.entries.length - 1];
  const done = last ? last.round : 0;
  const total = (way) => state.entries.reduce((sum, entry) => sum + (entry.bytes ? entry.bytes[way] : 0), 0);
  const newest = state.newest || {};
  const standing = last && last.finished ? chip('finished', 'good') : state.connected ? chip('connected', 'good') : chip('not connected', 'bad');
  const parts = [
    make('header', {}, make('div', {}, make('h1', {}, state.site, ' ', standing), make('p', { class: 'soft' }, `in ${state.federation} · ${state.method} · server ${state.server}`)), schemeSwitch()),
    verdict(state),
    make('div', { class: 'tiles' },
      tile(`${done} of ${state.rounds}`, 'rounds'),
      tile(share(newest.received && newest.received.accuracy), 'accuracy as received'),
      tile(share([...state.entries].reverse().map((entry) => entry.trained && entry.trained.accuracy).find(known)), 'after training here'),
      tile(share(newest.alone && newest.alone.accuracy), 'trained alone'),
      tile(bytes(total('down') + total('up')), 'models travelled', `${bytes(total('down'))} in, ${bytes(total('up'))} out`)),
  ];
  if (state.newest) {
    const grid = make('div', { class: 'grid' });
    curvesOf(grid, state);
    details(grid, state);
    parts.push(make('h2', {}, 'This site’s models'), grid, make('h2', {}, 'Rounds'), rounds(state));
  }
  parts.push(make('p', { class: 'soft foot' }, `Nothing on this page leaves this machine: it is read from ${state.journal}. Coterie ${state.version}.`));
  return parts;
}, 'The client has ended: start it again to see how it goes.');
