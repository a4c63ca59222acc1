// Finished models beyond their score: which classes are recognised, how well samples are ranked, what confidence is worth.

const percent = (value) => (known(value) ? `${Number((100 * value).toFixed(1))} %` : '–');
const RECALL = 'How to read: the share of a class’s test samples that the finished models recognise, as received after the last round.';
const RELIABLE = 'Bins with less than 1 % of the samples, or fewer than 5, are dots alone. The dashed line is perfect calibration: of the predictions made with 80 % confidence, 80 % are right. Below it, models are surer than they should be. The expected calibration error (ECE) is the mean distance from the line, by samples.';

/** Rows × columns of shares, stronger for more; the number stands in the cell where there is room. */
function shareGrid(width, { rows, columns, value, tell, columnTitle }) {
  const left = nameRoom(rows);
  const step = Math.min((width - left - 4) / columns.length, 140);
  const rise = rows.length > 60 ? 13 : 22;
  const below = Math.max(...columns.map((name) => shortened(name, 12).length)) * 6.5 + 30;
  const across = step * columns.length;
  const svg = canvas(width, rows.length * rise + below + 34);
  const sparse = Math.ceil(13 / step);
  rows.forEach((name, i) => {
    svg.append(draw('text', { class: 'name', x: left - 8, y: (i + 0.5) * rise + 4, 'text-anchor': 'end' }, shortened(name, 16)));
    columns.forEach((_, j) => {
      const found = value(i, j);
      // Squared, since these colours follow a square root.
      const cell = draw('g', {}, draw('rect', { x: left + j * step, y: i * rise, width: step - 1, height: rise - 1, rx: 2, fill: known(found) ? heatColour(found * found) : 'var(--absent)' }));
      if (known(found) && step > 30 && rise > 16) cell.append(draw('text', { x: left + (j + 0.5) * step, y: (i + 0.5) * rise + 4, 'text-anchor': 'middle', fill: found > 0.5 ? 'var(--ground)' : 'var(--ink)' }, Math.round(100 * found)));
      svg.append(tipped(cell, () => tell(i, j, found)));
    });
  });
  columns.forEach((name, j) => { if (j % sparse === 0) columnName(svg, name, left + (j + 0.5) * step, rows.length * rise + 8, step * sparse); });
  svg.append(draw('text', { x: left + across / 2, y: rows.length * rise + below - 6, 'text-anchor': 'middle' }, columnTitle));
  const bar = Math.min(across, 220);
  const y = rows.length * rise + below + 6;
  for (let i = 0; i < 40; i += 1) svg.append(draw('rect', { x: left + (i * bar) / 40, y, width: bar / 40 + 0.6, height: 9, fill: heatColour((i / 39) ** 2) }));
  ['0 %', '50 %', '100 %'].forEach((text, i) => svg.append(draw('text', { x: left + (bar * i) / 2, y: y + 22, 'text-anchor': ['start', 'middle', 'end'][i] }, text)));
  return svg;
}

/** Accuracy over confidence: curves `{label, confidence, accuracy, samples, colour, dash}` against the diagonal. */
function reliabilityPlot(width, curves, most = 400) {
  const height = Math.min(Math.max(width * 0.7, 260), most);
  const { svg, px, py } = axes(width, height, { x: [0, 1], y: [0, 1], xTitle: 'confidence (mean of the bin), %', yTitle: 'right predictions, %', xText: (v) => String(Math.round(100 * v)), yText: (v) => String(Math.round(100 * v)) });
  svg.append(draw('line', { x1: px(0), x2: px(1), y1: py(0), y2: py(1), stroke: 'var(--soft)', 'stroke-width': 1.4, 'stroke-dasharray': '5 4' }));
  for (const one of curves) {
    const all = one.samples.reduce((sum, count) => sum + count, 0) || 1;
    const there = one.samples.map((_, i) => i).filter((i) => one.samples[i]);
    // A bin of a few samples lies anywhere: it is a dot, and no turn of the line.
    const firm = there.filter((i) => one.samples[i] >= Math.max(0.01 * all, 5));
    svg.append(draw('path', { d: path(firm.map((i) => [px(one.confidence[i]), py(one.accuracy[i])])), fill: 'none', stroke: one.colour, 'stroke-width': 2, 'stroke-dasharray': one.dash || '', 'stroke-linejoin': 'round' }));
    for (const i of there) {
      const dot = draw('circle', { cx: px(one.confidence[i]), cy: py(one.accuracy[i]), r: 3 + 9 * Math.sqrt(one.samples[i] / all), fill: one.colour, 'fill-opacity': 0.55, stroke: one.colour });
      svg.append(tipped(dot, () => `${one.label}\nconfidence ${percent(one.confidence[i])}, right ${percent(one.accuracy[i])}\n${one.samples[i]} test samples`));
    }
  }
  return svg;
}

function recallGrid(parent, run) {
  const { quality } = run;
  if (!quality.recall) return;
  const names = run.order.map((k) => run.clients[k]);
  figure(parent, {
    title: 'Recall: which classes each client’s model recognises', wide: true,
    legend: [[areaMark('var(--absent)'), 'no test samples of the class']],
    how: `${RECALL} Numbers are per cent. A low number in a row of high ones is a class that the client’s model gave up.`,
  }, (width) => shareGrid(width, {
    rows: names, columns: quality.classes, columnTitle: 'class',
    value: (i, j) => quality.recall[run.order[i]][j],
    tell: (i, j, found) => `client ${names[i]}, class ${quality.classes[j]}: ${known(found) ? `${percent(found)} of ${quality.support[run.order[i]][j]} test samples recognised` : 'no test samples'}`,
  }));
}
function ranking(parent, run) {
  if (run.quality.why) return;
  figure(parent, {
    title: 'Ranking and calibration of each client’s model',
    legend: [[dotMark('var(--s0)'), 'AUC, further right is better'], [areaMark('var(--s1)', 0.7), 'ECE, shorter is better']],
    how: 'How to read: AUC is the chance that a sample of a class is given a higher probability for it than one of another class (one against the rest, mean over the client’s classes): 100 % is perfect, 50 % is guessing; a client with a single class has none. ECE is how far confidence and share of right predictions lie apart.',
  }, (width) => rankingRows(width, run, run.order.map((k) => run.clients[k])));
}
/** The curve of all clients together, or of the one that is `chosen`. */
function calibration(parent, run, chosen = () => run.quality.together) {
  if (run.quality.why) return undefined;
  return figure(parent, {
    title: `Calibration: what confidence is worth (ECE of all clients together: ${percent(run.quality.together.error)})`,
    how: `How to read: predictions in ten bins by their confidence, the highest probability; a dot’s area is the bin’s share of the test samples. ${RELIABLE}`,
  }, (width) => reliabilityPlot(width, [{ label: 'test samples', ...chosen(), colour: 'var(--s0)' }]));
}
function runQuality(parent, run) {
  const { quality } = run;
  if (quality.why) {
    parent.append(make('div', { class: 'card' }, `Classes recognised, AUC and calibration are not shown: ${quality.why}.`));
    return;
  }
  recallGrid(parent, run);
  ranking(parent, run);
  let curve = quality.together;
  const shown = calibration(parent, run, () => curve);
  if (quality.clients && run.clients.length > 1) {
    const choose = make('select', { 'aria-label': 'whose calibration' }, make('option', { value: -1 }, 'all clients together'), ...run.order.map((k) => make('option', { value: k }, `client ${run.clients[k]}: ECE ${percent(quality.ece[k])}`)));
    choose.addEventListener('change', () => { curve = Number(choose.value) < 0 ? quality.together : quality.clients[Number(choose.value)]; shown.redraw(); });
    parent.lastElementChild.querySelector('.legend').append(choose);
  }
}
function rankingRows(width, run, names) {
  const { auc, ece } = run.quality;
  const row = names.length > 60 ? 13 : 22;
  const left = nameRoom(names);
  const height = names.length * row + 44;
  const middle = left + (width - left) * 0.56;
  const low = Math.max(0, Math.min(...auc.filter(known), 0.98) - 0.02), high = Math.max(...ece.filter(known), 0.02);
  const px = (value) => left + 6 + ((value - low) / (1 - low)) * (middle - left - 22);
  const ex = (value) => middle + 8 + (value / high) * (width - middle - 22);
  const svg = canvas(width, height);
  for (const [range, at, title] of [[[low, 1], px, 'AUC, %'], [[0, high], ex, 'ECE, %']]) {
    for (const tick of ticks(range, 3)) {
      svg.append(draw('line', { class: 'axis', x1: at(tick), x2: at(tick), y1: 0, y2: height - 40 }));
      svg.append(draw('text', { x: at(tick), y: height - 24, 'text-anchor': 'middle' }, String(Number((100 * tick).toFixed(1)))));
    }
    svg.append(draw('text', { x: (at(range[0]) + at(range[1])) / 2, y: height - 4, 'text-anchor': 'middle' }, title));
  }
  run.order.forEach((k, place) => {
    const y = (place + 0.5) * row;
    const line = draw('g', {}, draw('rect', { x: 0, y: y - row / 2, width, height: row, fill: place % 2 ? 'transparent' : 'var(--line)', 'fill-opacity': 0.35 }));
    line.append(draw('text', { class: 'name', x: left - 8, y: y + 4, 'text-anchor': 'end' }, shortened(names[place], 16)));
    if (known(auc[k])) line.append(draw('circle', { cx: px(auc[k]), cy: y, r: Math.min(4.5, row / 3), fill: 'var(--s0)' }));
    if (known(ece[k])) line.append(draw('rect', { x: ex(0), y: y - row * 0.28, width: Math.max(ex(ece[k]) - ex(0), 1), height: row * 0.56, rx: 2, fill: 'var(--s1)', 'fill-opacity': 0.7 }));
    svg.append(tipped(line, () => `client ${names[place]}\nAUC ${known(auc[k]) ? percent(auc[k]) : '– (one class alone)'}\nECE ${percent(ece[k])}`));
  });
  return svg;
}

/** Dots of clients, a row for each method. */
function methodDots(parent, methods, what, title, how) {
  const all = methods.flatMap((one) => one.dots.map((dot) => dot[what])).filter(known);
  if (!all.length) return;
  const spread = extent(all, 0.06).map((value) => Math.min(1.004, Math.max(0, value)));
  figure(parent, { title, how }, (width) => {
    const row = 66, height = methods.length * row + 44;
    const svg = canvas(width, height);
    const px = (value) => 14 + ((value - spread[0]) / (spread[1] - spread[0] || 1)) * (width - 28);
    for (const at of ticks(spread, Math.max(2, width / 90))) {
      svg.append(draw('line', { class: 'axis', x1: px(at), x2: px(at), y1: 0, y2: height - 40 }));
      svg.append(draw('text', { x: px(at), y: height - 24, 'text-anchor': 'middle' }, String(Number((100 * at).toFixed(1)))));
    }
    svg.append(draw('text', { x: width / 2, y: height - 4, 'text-anchor': 'middle' }, `${what.toUpperCase()}, %`));
    methods.forEach((one, place) => {
      const there = one.dots.filter((dot) => known(dot[what]));
      const y = place * row;
      svg.append(draw('text', { class: 'name', x: 4, y: y + 15 }, one.title));
      if (!there.length) return;
      const mean = there.reduce((sum, dot) => sum + dot[what], 0) / there.length;
      svg.append(draw('text', { class: 'told', x: width - 4, y: y + 15, 'text-anchor': 'end' }, `mean ${percent(mean)}`));
      there.forEach((dot, i) => {
        const mark = draw('circle', { cx: px(dot[what]), cy: y + 40 + ((i * 7) % 5 - 2) * 4.5, r: 4.5, fill: seriesColour(place), 'fill-opacity': 0.65 });
        svg.append(tipped(mark, () => `${one.title}: client ${dot.client}, seed ${dot.seed}: ${percent(dot[what])}`));
      });
      svg.append(draw('line', { x1: px(mean), x2: px(mean), y1: y + 24, y2: y + 56, stroke: 'var(--ink)', 'stroke-width': 2.5 }));
    });
    return svg;
  });
}
function methodRecalls(parent, { quality }) {
  const { methods, classes } = quality;
  if (quality.why) return;
  figure(parent, {
    title: 'Recall of each class, all clients’ test samples together', wide: true,
    legend: [[areaMark('var(--absent)'), 'no test samples of the class']],
    how: `${RECALL} Numbers are per cent, over all clients and seeds, each with its own model.`,
  }, (width) => shareGrid(width, {
    rows: methods.map((one) => one.title), columns: classes, columnTitle: 'class',
    value: (i, j) => methods[i].recall[j],
    tell: (i, j, found) => `${methods[i].title}, class ${classes[j]}: ${percent(found)} recognised`,
  }));
}
function methodRankings(parent, { quality: { methods } }) {
  methodDots(parent, methods, 'auc', 'AUC of each client’s model', 'How to read: a dot is a client (of one seed); the bar is the mean. One class against the rest, mean over the client’s classes: 100 % is perfect, 50 % is guessing.');
  methodDots(parent, methods, 'ece', 'Calibration error (ECE) of each client’s model', 'How to read: a dot is a client (of one seed); the bar is the mean. How far confidence and share of right predictions lie apart: further left is better.');
}
function methodCalibrations(parent, { quality }) {
  const { methods } = quality;
  if (quality.why) return;
  figure(parent, {
    title: 'Calibration: what confidence is worth', wide: true,
    legend: methods.map((one, i) => [lineMark(seriesColour(i), seriesDash(i)), `${one.title}: ECE ${percent(one.error)}`]),
    how: `How to read: predictions of all clients and seeds in ten bins by their confidence; a dot’s area is the bin’s share. ${RELIABLE}`,
  }, (width) => reliabilityPlot(width, methods.map((one, i) => ({ label: one.title, ...one, colour: seriesColour(i), dash: seriesDash(i) }))));
}
function methodsQuality(parent, comparison) {
  if (comparison.quality.why) parent.append(make('div', { class: 'card' }, `Classes recognised, AUC and calibration are not compared: ${comparison.quality.why}.`));
  for (const part of [methodRecalls, methodRankings, methodCalibrations]) part(parent, comparison);
}
