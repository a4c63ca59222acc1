// Who gains influence: every client's column weight in W, hostile clients told apart.

function influenceBars(parent, run, track) {
  const hostile = new Set(run.hostile);
  const colour = (k) => (hostile.has(k) ? 'var(--s1)' : 'var(--s0)');
  return figure(parent, {
    title: 'Who has influence: a client’s share of what the others learn',
    legend: hostile.size ? [[areaMark('var(--s0)'), 'honest'], [areaMark('var(--s1)'), 'hostile']] : [],
    how: 'How to read: the bar of client j is the mean, over all learners, of its weight in the mixes of others: the sum of its column of W without itself, divided by the learners, averaged over the recorded rounds. The dashed line is the mean over clients. Whoever is chosen by many stands out.',
  }, (width) => {
    const names = run.order.map((k) => run.clients[k]);
    const values = run.order.map((k) => track().influence[k] || 0);
    const row = names.length > 60 ? 9 : 17;
    const left = nameRoom(names) + 4;
    const most = Math.max(...values, 1e-9);
    const px = (value) => left + (value / most) * (width - left - 60);
    const svg = canvas(width, names.length * row + 26);
    run.order.forEach((k, place) => {
      const y = place * row;
      const bar = draw('rect', { x: left, y: y + 1, width: Math.max(px(values[place]) - left, 0.5), height: row - 2, rx: 2, fill: colour(k), 'data-influence': values[place] });
      svg.append(tipped(bar, () => `client ${names[place]}${hostile.has(k) ? ' (hostile)' : ''}: ${(100 * values[place]).toFixed(2)} % of what the others learn`));
      if (row > 10 || place % 3 === 0) svg.append(draw('text', { class: 'name', x: left - 6, y: y + row / 2 + 4, 'text-anchor': 'end' }, shortened(names[place], 16)));
    });
    const mean = values.reduce((a, b) => a + b, 0) / values.length;
    svg.append(draw('line', { x1: px(mean), x2: px(mean), y1: 0, y2: names.length * row, stroke: 'var(--soft)', 'stroke-dasharray': '4 3' }));
    svg.append(draw('text', { x: px(mean), y: names.length * row + 16, 'text-anchor': 'middle' }, `mean ${(100 * mean).toFixed(1)} %`));
    return svg;
  });
}
