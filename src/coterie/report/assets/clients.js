// The clients one by one: how each fares beside the classes it holds, and the partition as bubbles.

const nameRoom = (names) => Math.min(130, Math.max(...names.map((name) => shortened(name, 16).length)) * 7 + 12);

/** Every client a row: its class mix as a bar, its scores as dots. */
function clientRows(parent, run) {
  const moments = Object.keys(run.final);
  if (!moments.length) return;
  const { metric } = run;
  const mixes = run.counts !== null;
  const colours = moments.map((_, i) => seriesColour([1, 0, 2][i]));
  const classMarks = mixes && run.classes.length <= 20 ? run.classes.map((name, c) => [areaMark(classColour(c, run.classes.length)), name]) : [];
  const last = run.curves[moments[0]].rounds.slice(-1)[0];
  figure(parent, {
    title: `Each client after round ${last}: its classes, its ${metric.name}`,
    wide: true,
    legend: [...moments.map((moment, i) => [dotMark(colours[i], i === 0), `${metric.name} ${moment}`]), ...classMarks],
    how: `How to read: a row is a client${mixes ? '; clients with similar classes stand together. The bar shows the shares of its training samples by class, the number their sum' : ''}. The line from dot to dot is what local training changes. ${mixes ? '' : `No class mix: ${run.why}.`}`,
  }, (width) => {
    const names = run.order.map((k) => run.clients[k]);
    const row = names.length > 60 ? 13 : 22;
    const left = nameRoom(names);
    const room = width - left - 12;
    const barEnd = left + (mixes ? room * (width < 560 ? 0.36 : 0.42) : 0);
    const numbersEnd = barEnd + (mixes && run.sizes.length ? 52 : 16);
    const height = names.length * row + 44;
    const x = scoreRange(metric, moments.flatMap((moment) => run.final[moment]));
    const px = (value) => numbersEnd + 8 + ((value - x[0]) / (x[1] - x[0] || 1)) * (width - 20 - numbersEnd);
    const svg = canvas(width, height);
    for (const at of ticks(x, Math.max(2, (width - numbersEnd) / 70))) {
      svg.append(draw('line', { class: 'axis', x1: px(at), x2: px(at), y1: 0, y2: height - 40 }));
      svg.append(draw('text', { x: px(at), y: height - 24, 'text-anchor': 'middle' }, plainScore(metric)(at)));
    }
    svg.append(draw('text', { x: (numbersEnd + width) / 2, y: height - 4, 'text-anchor': 'middle' }, titled(metric)));
    if (mixes) svg.append(draw('text', { x: (left + barEnd) / 2, y: height - 24, 'text-anchor': 'middle' }, 'shares of classes'));
    if (mixes && run.sizes.length) svg.append(draw('text', { x: numbersEnd - 6, y: height - 24, 'text-anchor': 'end' }, 'samples'));
    run.order.forEach((k, place) => {
      const y = place * row + row / 2;
      const line = draw('g');
      line.append(draw('rect', { x: 0, y: y - row / 2, width, height: row, fill: place % 2 ? 'transparent' : 'var(--line)', 'fill-opacity': 0.35 }));
      line.append(draw('text', { class: 'name', x: left - 8, y: y + 4, 'text-anchor': 'end' }, shortened(names[place], 16)));
      if (mixes) {
        const sum = run.counts[k].reduce((a, b) => a + b, 0) || 1;
        let at = left;
        run.counts[k].forEach((count, c) => {
          const across = (count / sum) * (barEnd - left);
          if (count) line.append(draw('rect', { x: at, y: y - row * 0.3, width: Math.max(across - 0.6, 0.4), height: row * 0.6, fill: classColour(c, run.classes.length) }));
          at += across;
        });
      }
      if (mixes && run.sizes.length) line.append(draw('text', { x: numbersEnd - 6, y: y + 4, 'text-anchor': 'end' }, String(run.sizes[k])));
      const there = moments.map((moment, i) => [run.final[moment][k], i]).filter(([value]) => known(value));
      if (there.length > 1) {
        const ends = extent(there.map(([value]) => value));
        line.append(draw('line', { x1: px(ends[0]), x2: px(ends[1]), y1: y, y2: y, stroke: 'var(--soft)', 'stroke-width': 1.4 }));
      }
      for (const [value, i] of there) line.append(draw('circle', { cx: px(value), cy: y, r: Math.min(i === 0 ? 6 : 4, row / 3), fill: i === 0 ? 'transparent' : colours[i], stroke: colours[i], 'stroke-width': 2 }));
      svg.append(tipped(line, () => [
        `client ${run.clients[k]}`,
        ...moments.map((moment) => `${moment}: ${score(metric, run.final[moment][k])}`),
        ...(mixes ? [`classes: ${classesText(run, k)}`] : []),
      ].join('\n')));
    });
    return svg;
  });
}
function classesText(run, k) {
  const held = run.counts[k].map((count, c) => [count, run.classes[c]]).filter(([count]) => count).sort((a, b) => b[0] - a[0]);
  return held.slice(0, 6).map(([count, name]) => `${name} (${count})`).join(', ') + (held.length > 6 ? ` and ${held.length - 6} more` : '');
}

/** Clients × classes, a bubble's area is the number of samples. */
function bubbles(parent, run) {
  if (run.counts === null) return;
  const most = highest(run.counts.flat(), 1);
  figure(parent, {
    title: 'The partition: who holds how many samples of which class',
    wide: true,
    how: `How to read: a column is a client, a row a class; the area of a bubble is the number of training samples (the largest: ${most}). Even columns mean that clients are alike.`,
  }, (width) => {
    const classes = run.classes;
    const left = nameRoom(classes);
    const step = (width - left - 8) / run.order.length;
    const rise = Math.max(Math.min(step * 1.1, 26), Math.min(16, 420 / classes.length));
    const below = Math.max(...run.clients.map((name) => shortened(name, 12).length)) * 6.5 + 26;
    const height = classes.length * rise + below;
    const svg = canvas(width, height);
    const radius = Math.min(Math.max(step, rise * 0.7), rise) * 0.52;
    const every = Math.ceil(13 / rise);
    classes.forEach((name, c) => {
      const y = (c + 0.5) * rise;
      svg.append(draw('line', { class: 'axis', x1: left, x2: width - 8, y1: y, y2: y }));
      if (c % every === 0) svg.append(draw('text', { class: 'name', x: left - 8, y: y + 4, 'text-anchor': 'end' }, shortened(name, 16)));
    });
    const sparse = Math.ceil(13 / step);
    run.order.forEach((k, place) => {
      const x = left + (place + 0.5) * step;
      run.counts[k].forEach((count, c) => {
        if (!count) return;
        const bubble = draw('circle', { cx: x, cy: (c + 0.5) * rise, r: Math.max(radius * Math.sqrt(count / most), 0.8), fill: classColour(c, classes.length), 'fill-opacity': 0.9 });
        svg.append(tipped(bubble, () => `client ${run.clients[k]}: ${count} of class ${classes[c]}`));
      });
      if (place % sparse === 0) columnName(svg, run.clients[k], x, classes.length * rise + 8, step * sparse);
    });
    svg.append(draw('text', { x: (left + width) / 2, y: height - 2, 'text-anchor': 'middle' }, 'client'));
    return svg;
  });
}
/** A name below a column: across if there is room, else upright. */
function columnName(svg, name, x, y, room) {
  const text = shortened(name, 12);
  const upright = text.length * 7 + 5 > room;
  const attributes = upright ? { x: 0, y: 0, 'text-anchor': 'end', transform: `translate(${x + 4} ${y}) rotate(-90)` } : { x, y: y + 8, 'text-anchor': 'middle' };
  svg.append(draw('text', { class: 'name', ...attributes }, text));
}
