// Lines over rounds (or bytes, or seconds), with bands around them.

/** Lines with bands: each `{label, xs, ys, low, high, colour, dash, text(i)}`; a tooltip tells the nearest values. */
function lines(width, height, { series, xTitle, yTitle, xText, yText, y, marker, x }) {
  const all = series.flatMap((one) => one.xs);
  const frame = axes(width, height, { x: x || extent(all), y, xTitle, yTitle, xText, yText });
  const { svg, px, py } = frame;
  const layers = [draw('g'), draw('g')];
  for (const one of series) {
    const xs = one.xs.map(px);
    for (const [low, high, opacity] of one.bands || []) {
      layers[0].append(draw('path', { d: band(xs, low.map((v) => known(v) ? py(v) : v), high.map((v) => known(v) ? py(v) : v)), fill: one.colour, 'fill-opacity': opacity }));
    }
    const points = one.xs.map((at, i) => [px(at), known(one.ys[i]) ? py(one.ys[i]) : null]);
    layers[1].append(draw('path', { d: path(points), fill: 'none', stroke: one.colour, 'stroke-width': one.thin ? 1.6 : 2.4, 'stroke-dasharray': one.dash || '', 'stroke-linejoin': 'round' }));
    if (one.xs.length < 12) for (const [cx, cy] of points) if (known(cy)) layers[1].append(draw('circle', { cx, cy, r: 2.8, fill: one.colour }));
  }
  svg.append(...layers);
  if (known(marker)) svg.append(draw('line', { x1: px(marker), x2: px(marker), y1: frame.top, y2: frame.bottom, stroke: 'var(--ink)', 'stroke-width': 1.2, 'stroke-dasharray': '3 3' }));
  const hair = draw('line', { class: 'axis strong', y1: frame.top, y2: frame.bottom, visibility: 'hidden' });
  const glass = draw('rect', { x: frame.left, y: 0, width: Math.max(frame.right - frame.left, 1), height: frame.bottom, fill: 'transparent' });
  glass.addEventListener('pointermove', (event) => {
    const box = svg.getBoundingClientRect();
    const at = (event.clientX - box.left) * (width / box.width);
    const nearest = all.reduce((best, one) => (Math.abs(px(one) - at) < Math.abs(px(best) - at) ? one : best), all[0]);
    hair.setAttribute('x1', px(nearest));
    hair.setAttribute('x2', px(nearest));
    hair.setAttribute('visibility', 'visible');
    const told = series.map((one) => [one, one.xs.indexOf(nearest)]).filter(([, i]) => i >= 0);
    showTip(event, [`${xTitle.split(',')[0]} ${xText ? xText(nearest) : nearest}`, ...told.map(([one, i]) => `${one.label}: ${yText(one.ys[i])}`)].join('\n'));
  });
  glass.addEventListener('pointerleave', (event) => { hair.setAttribute('visibility', 'hidden'); showTip(event, ''); });
  svg.append(hair, glass);
  return svg;
}

const MOMENTS = {
  received: 'as received, before local training',
  trained: 'right after local training',
  stored: 'after each client’s own last training',
};
const titled = (metric) => (metric.share ? `${metric.name}, %` : metric.name);
const plainScore = (metric) => (value) => (metric.share ? String(Number((100 * value).toFixed(1))) : Number(value.toPrecision(4)).toString());
/** Shares end at 0 and 100 %, and start where there is something to see. */
function scoreRange(metric, values) {
  const [low, high] = extent(values, 0.06);
  return metric.share ? [Math.max(0, low), Math.min(1.002, high)] : [low, high];
}

/** A run's curves, one panel a moment, all on the same scale. */
function runCurves(parent, run) {
  const everything = Object.values(run.curves).flatMap((one) => [...one.q10, ...one.q90, ...one.worst, ...one.mean]);
  const y = scoreRange(run.metric, everything);
  for (const [moment, one] of Object.entries(run.curves)) {
    figure(parent, {
      title: `${capital(run.metric.name)} ${MOMENTS[moment]}`,
      legend: [
        [lineMark('var(--s0)'), 'mean over clients'],
        [areaMark('var(--s0)', 0.38), 'middle half of the clients'],
        [areaMark('var(--s0)', 0.16), 'all but the outer tenths'],
        [lineMark('var(--s1)', '5 4'), 'worst tenth, mean'],
      ],
      how: `How to read: each round’s clients from the worst (bottom) to the best. ${run.metric.higher ? 'Higher' : 'Lower'} is better; a wide band means that clients fare differently.`,
    }, (width) => lines(width, 280, {
      series: [
        { label: 'mean', xs: one.rounds, ys: one.mean, colour: 'var(--s0)', bands: [[one.q10, one.q90, 0.16], [one.q25, one.q75, 0.26]] },
        { label: 'worst tenth', xs: one.rounds, ys: one.worst, colour: 'var(--s1)', dash: '5 4', thin: true },
      ],
      y, xTitle: 'round', yTitle: titled(run.metric), yText: plainScore(run.metric),
    }));
  }
}

/** The loss on the samples that clients train on, and beside it that on their test samples. */
function trainingCurve(parent, run) {
  const one = run.training;
  if (!one) return;
  const tested = one.tested.some(known);
  const loss = { name: 'loss', share: false };
  const all = [...one.q10, ...one.q90, ...one.mean, ...one.tested];
  figure(parent, {
    title: 'Training loss of the clients that took part',
    legend: [
      [lineMark('var(--s2)'), 'mean over clients'],
      [areaMark('var(--s2)', 0.38), 'middle half of the clients'],
      [areaMark('var(--s2)', 0.16), 'all but the outer tenths'],
      ...(tested ? [[lineMark('var(--s5)', '5 4'), 'on test samples, right after']] : []),
    ],
    how: 'How to read: the task’s loss on the clients’ own training samples in their last epoch, as training met them. Lower is better; a test loss that rises while this one falls tells of overfitting.',
  }, (width) => lines(width, 280, {
    series: [
      { label: 'training, mean', xs: one.rounds, ys: one.mean, colour: 'var(--s2)', bands: [[one.q10, one.q90, 0.16], [one.q25, one.q75, 0.26]] },
      ...(tested ? [{ label: 'test, mean', xs: one.rounds, ys: one.tested, colour: 'var(--s5)', dash: '5 4', thin: true }] : []),
    ],
    y: extent([...all, 0], 0.03), xTitle: 'round', yTitle: 'loss', yText: (value) => (known(value) ? plainScore(loss)(value) : '–'),
  }));
}

/** Layers that add up, over rounds: bytes up and down, seconds by activity. */
function stacked(width, height, { rounds, layers, yTitle, yText, told }) {
  const totals = rounds.map((_, i) => layers.reduce((sum, one) => sum + one.values[i], 0));
  const frame = axes(width, height, { x: [rounds[0] - 0.5, rounds[rounds.length - 1] + 0.5], y: [0, highest(totals) * 1.05 || 1], xTitle: 'round', yTitle, yText, left: 60 });
  const { svg, px, py } = frame;
  const edges = (values) => rounds.flatMap((round, i) => [[px(round - 0.5), py(values[i])], [px(round + 0.5), py(values[i])]]);
  let below = rounds.map(() => 0);
  for (const one of layers) {
    const above = below.map((value, i) => value + one.values[i]);
    svg.append(draw('path', { d: `${path(edges(above))}${path(edges(below).reverse()).replace('M', 'L')}Z`, fill: one.colour, 'fill-opacity': 0.85 }));
    below = above;
  }
  const glass = draw('rect', { x: frame.left, y: 0, width: Math.max(frame.right - frame.left, 1), height: frame.bottom, fill: 'transparent' });
  glass.addEventListener('pointermove', (event) => {
    const box = svg.getBoundingClientRect();
    const at = (event.clientX - box.left) * (width / box.width);
    const i = rounds.reduce((best, round, j) => (Math.abs(px(round) - at) < Math.abs(px(rounds[best]) - at) ? j : best), 0);
    showTip(event, [`round ${rounds[i]}`, ...layers.map((one) => `${one.label}: ${told(one.values[i])}`)].join('\n'));
  });
  glass.addEventListener('pointerleave', (event) => showTip(event, ''));
  svg.append(glass);
  return svg;
}
function costPanel(parent, run, title, parts, yTitle, text, how) {
  const layers = Object.entries(parts).map(([label, values], i) => ({ label, values, colour: seriesColour([0, 4, 5][i]) }));
  figure(parent, { title, legend: layers.map((one) => [areaMark(one.colour, 0.85), one.label]), how: `How to read: the height is the round’s sum. ${how}` },
    (width) => stacked(width, 230, { rounds: run.cost.rounds, layers, yTitle, yText: text, told: text }));
}
function bytesMoved(parent, run) {
  const { bytes: sent, total_bytes: total } = run.cost;
  if (total) costPanel(parent, run, `Bytes per round: ${bytes(total)} in all`, sent, 'bytes, all clients of the round', bytes, 'What a network would carry: the clients’ uploads, and what the server sends them.');
  else parent.append(make('div', { class: 'card' }, 'Nothing travelled: there are no bytes to show.'));
}
function secondsTaken(parent, run) {
  const { rounds, seconds: taken, total_seconds: total } = run.cost;
  if (!rounds.length) return;
  const [unit, size] = timeUnit(highest(rounds.map((_, i) => Object.values(taken).reduce((sum, one) => sum + one[i], 0))));
  const scaled = Object.fromEntries(Object.entries(taken).map(([name, values]) => [name, values.map((value) => value / size)]));
  costPanel(parent, run, `${capital(unit)} per round, by activity: ${seconds(total)} in all`, scaled, unit, plainNumber, 'Measured on the machine of the run, on which clients may have trained one after the other.');
}
