// Several runs together: curves of the methods, the table, accuracy against what it cost, who gained and who lost.

/** The methods' means at a moment, over what they have spent: `what` is rounds, or bytes or seconds in units of a size. */
function methodLines(parent, { metric, methods }, { title, moment, what, xTitle, xText, how, size = 1 }) {
  const look = methods.map((_, i) => ({ colour: seriesColour(i), dash: seriesDash(i) }));
  const there = methods.map((one, i) => [one.curves[moment], i]).filter(([one]) => one && one.rounds.length);
  if (!there.length) return;
  const around = (one, sign) => one.mean.map((value, i) => value + sign * (one.std ? one.std[i] : 0));
  // All moments have the same axis: their figures stand side by side.
  const y = scoreRange(metric, methods.flatMap((one) => Object.values(one.curves).flatMap((at) => [...around(at, 1), ...around(at, -1)])));
  figure(parent, { title: `${capital(metric.name)} ${title}`, legend: methods.map((one, i) => [lineMark(look[i].colour, look[i].dash), one.title]), how: `How to read: ${how}` }, (width) => lines(width, 300, {
    series: there.map(([one, i]) => ({
      label: methods[i].title, xs: one[what].map((value) => value / size), ys: one.mean, ...look[i],
      bands: one.std && what === 'rounds' ? [[around(one, -1), around(one, 1), 0.16]] : [],
    })),
    y, xTitle, xText, yTitle: titled(metric), yText: plainScore(metric),
  }));
}
function methodCurves(parent, comparison) {
  const seeds = comparison.methods.some((one) => one.curves.received && one.curves.received.std) ? ' Bands: the standard deviation over the seeds.' : '';
  const better = comparison.metric.higher ? 'Higher' : 'Lower';
  for (const [moment, title] of Object.entries(MOMENTS)) {
    methodLines(parent, comparison, { title, moment, what: 'rounds', xTitle: 'round', how: `the mean over clients, averaged over seeds. ${better} is better.${seeds}` });
  }
}
function againstBytes(parent, comparison) {
  methodLines(parent, comparison, { title: 'as received, against bytes', moment: 'received', what: 'bytes', xTitle: 'bytes up and down so far, all clients', xText: bytes, how: 'how far a method has come when a network would have carried so much. Further left for the same height is cheaper.' });
}
function againstSeconds(parent, comparison) {
  const [unit, size] = timeUnit(highest(comparison.methods.flatMap((one) => (one.curves.received ? one.curves.received.seconds : []))));
  methodLines(parent, comparison, { title: 'as received, against time', moment: 'received', what: 'seconds', xTitle: `${unit} of computation so far`, xText: plainNumber, size, how: 'how far a method has come after so much computing on the machine of the run. Runs that shared their machine with others took longer.' });
}

const UNITS = { B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12 };
/** How cells follow each other: by the number at their beginning, with its unit; else as texts. Dashes come last. */
function inOrder(one, other) {
  const [a, b] = [one, other].map((text) => {
    const [, digits, unit] = text.match(/^(-?[0-9.]+(?:e[+-]?[0-9]+)?)(?:[^A-Za-z]*([kMGT]?B))?/) || [];
    return digits === undefined ? Infinity : Number(digits) * (UNITS[unit] || 1);
  });
  return a === b ? one.localeCompare(other) : a - b;
}
/** A table whose titles sort it. */
function sortable(titles, cells) {
  const rows = cells.map((row) => make('tr', {}, ...row.map((text) => make('td', {}, text))));
  const body = make('tbody', {}, ...rows);
  const heads = titles.map((title) => make('th', {}, make('button', { type: 'button', class: 'sort', title: 'sort' }, title)));
  heads.forEach((head, column) => head.firstChild.addEventListener('click', () => {
    const down = head.getAttribute('aria-sort') === 'ascending';
    for (const one of heads) one.removeAttribute('aria-sort');
    head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
    rows.sort((a, b) => (down ? -1 : 1) * inOrder(a.cells[column].textContent, b.cells[column].textContent));
    body.replaceChildren(...rows);
  }));
  return make('table', {}, make('thead', {}, make('tr', {}, ...heads)), body);
}
function comparisonTable(parent, { table }) {
  const whole = sortable(['method', 'seeds', ...table.columns], table.rows.map((row) => [row.method, row.seeds, ...row.cells]));
  const notes = [table.note, table.settings].filter(Boolean).map((text) => make('p', { class: 'soft' }, text));
  parent.append(make('div', { class: 'card' }, make('h3', {}, 'The methods in numbers'), make('div', { class: 'scroll' }, whole), make('p', {}), ...notes));
}

/** Every client a dot: how much better or worse than by training alone. */
function gains(parent, { gains: found, metric }) {
  const all = Object.values(found.moments).flat().flatMap((row) => row.gains.map((one) => one.gain));
  if (!all.length) {
    parent.append(make('div', { class: 'card' }, `Who gained and who lost by learning from others is not shown: ${found.why}.`));
    return;
  }
  const spread = extent([...all, 0], 0.06);
  const signed = (value) => `${value > 0 ? '+' : value < 0 ? '−' : ''}${plainScore(metric)(Math.abs(value))}`;
  for (const [moment, rows] of Object.entries(found.moments)) {
    if (!rows.length) continue;
    figure(parent, {
      title: `Each client against training alone, models as ${moment}`,
      legend: [[dotMark('var(--ink)'), 'gained'], [dotMark('var(--ink)', true), 'lost'], [dotMark('var(--line)'), 'the same']],
      how: `How to read: a dot is a client (of one seed): its last ${metric.name} minus what Local gives it on the same samples. Right of the line it gained by learning from others, left of it, it lost. Bars are means. Point at a dot for its name.`,
    }, (width) => {
      const row = 74;
      const height = rows.length * row + 44;
      const svg = canvas(width, height);
      const px = (value) => 14 + ((value - spread[0]) / (spread[1] - spread[0])) * (width - 28);
      for (const at of ticks(spread, Math.max(2, width / 90))) {
        // Only beside the dots: the words above them stay clear.
        rows.forEach((_, place) => svg.append(draw('line', { class: at === 0 ? 'axis strong' : 'axis', x1: px(at), x2: px(at), y1: place * row + 24, y2: place * row + 68 })));
        svg.append(draw('text', { x: px(at), y: height - 24, 'text-anchor': 'middle' }, signed(at)));
      }
      svg.append(draw('text', { x: width / 2, y: height - 4, 'text-anchor': 'middle' }, `gain in ${metric.name}${metric.share ? ', percentage points' : ''}`));
      rows.forEach((one, place) => {
        const y = place * row;
        svg.append(draw('text', { class: 'name', x: 4, y: y + 16 }, one.method));
        svg.append(draw('text', { class: 'told', x: width - 4, y: y + 16, 'text-anchor': 'end' }, `${one.gained} gained, ${one.lost} lost, mean ${signed(one.mean)}`));
        svg.append(draw('line', { x1: px(one.mean), x2: px(one.mean), y1: y + 28, y2: y + 62, stroke: 'var(--ink)', 'stroke-width': 2.5 }));
        one.gains.forEach((gain, i) => {
          // Tones, not colours: those are the methods'.
          const lost = gain.gain < -1e-9;
          const fill = lost ? 'var(--card)' : gain.gain > 1e-9 ? 'var(--ink)' : 'var(--line)';
          const dot = draw('circle', { cx: px(gain.gain), cy: y + 45 + ((i * 7) % 5 - 2) * 5, r: 4.2, fill, 'fill-opacity': 0.75, stroke: 'var(--ink)', 'stroke-width': lost ? 1.6 : 0.6 });
          svg.append(tipped(dot, () => `client ${gain.client}, seed ${gain.seed}: ${signed(gain.gain)}`));
        });
      });
      return svg;
    });
  }
}
