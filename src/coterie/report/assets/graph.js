// Who learns from whom as a graph, in which clients that learn much from each other are drawn together, and who has influence.

const SOURCES = 3;

/** Where clients stand: they push each other away, and weights pull them together. Goes on from where they stood. */
function settle(places, pull, steps, heat) {
  const clients = places.length;
  const apart = 1 / Math.sqrt(clients);
  for (let step = 0; step < steps; step += 1) {
    const moves = places.map(([x, y]) => [-x * 2, -y * 2]);
    for (let i = 0; i < clients; i += 1) {
      for (let j = 0; j < i; j += 1) {
        const dx = places[i][0] - places[j][0], dy = places[i][1] - places[j][1];
        const far = Math.max(Math.hypot(dx, dy), 1e-4);
        const force = (apart * apart) / (far * far) - (0.9 * pull[i][j] * far) / apart;
        moves[i][0] += dx * force; moves[i][1] += dy * force;
        moves[j][0] -= dx * force; moves[j][1] -= dy * force;
      }
    }
    const limit = heat * (1 - step / steps) + 0.001;
    moves.forEach(([x, y], i) => {
      const size = Math.max(Math.hypot(x, y), 1e-9);
      places[i][0] += (x / size) * Math.min(size * 0.1, limit);
      places[i][1] += (y / size) * Math.min(size * 0.1, limit);
    });
  }
}

function graph(parent, run, at) {
  const clients = run.clients.length;
  const value = (i, j) => weightOf(at.track, at.t, clients, i, j);
  const places = run.order.map(() => [0, 0]);
  run.order.forEach((k, place) => { places[k] = [Math.cos((2 * Math.PI * place) / clients) * 0.6, Math.sin((2 * Math.PI * place) / clients) * 0.6]; });
  let fresh = true;
  return figure(parent, {
    title: 'As a graph: who pulls whom',
    how: `How to read: an arrow leads from a client to one that learns from it, as thick as the weight; the ${SOURCES} largest sources of each client are drawn. Clients that learn much from each other stand together${run.counts ? '; rings show their classes' : ''}.`,
  }, (width) => {
    const everyone = [...run.clients.keys()];
    const others = everyone.flatMap((i) => everyone.filter((j) => j !== i).map((j) => ({ i, j, weight: value(i, j) || 0 })));
    const most = highest(others.map((one) => one.weight), 1e-9);
    const both = (i, j) => (value(i, j) || 0) + (value(j, i) || 0);
    const pairs = others.map((one) => both(one.i, one.j));
    const [low, high] = pairs.length ? extent(pairs) : [0, 0];
    const pull = everyone.map((i) => everyone.map((j) => (high - low > 1e-6 ? (both(i, j) - low) / (high - low) : 0)));
    settle(places, pull, fresh ? 400 : 120, fresh ? 0.12 : 0.05);
    fresh = false;

    const height = Math.min(Math.max(width * 0.8, 260), 460);
    const radius = Math.max(4, Math.min(13, (0.28 * height) / Math.sqrt(clients)));
    const room = radius + 16;
    const [xs, ys] = [0, 1].map((axis) => extent(places.map((one) => one[axis]), 0.02));
    const spot = places.map(([x, y]) => [
      room + ((x - xs[0]) / (xs[1] - xs[0] || 1)) * (width - 2 * room),
      room + ((y - ys[0]) / (ys[1] - ys[0] || 1)) * (height - 2 * room),
    ]);
    const svg = canvas(width, height);
    for (const i of everyone) {
      const sources = others.filter((one) => one.i === i && one.weight > most * 0.02).sort((a, b) => b.weight - a.weight).slice(0, SOURCES);
      for (const { j, weight } of sources) svg.append(arrow(spot[j], spot[i], radius, weight / most, () => `client ${run.clients[i]} learns ${(100 * weight).toFixed(1)} % from client ${run.clients[j]}`));
    }
    for (const k of everyone) {
      const node = draw('g', { transform: `translate(${spot[k][0].toFixed(1)} ${spot[k][1].toFixed(1)})` });
      node.append(draw('circle', { r: radius + 1.5, fill: 'var(--card)' }));
      if (run.counts) node.append(...ring(run.counts[k], radius));
      else node.append(draw('circle', { r: radius, fill: 'var(--s0)' }));
      node.append(draw('circle', { r: radius * 0.58, fill: 'var(--card)' }));
      const text = draw('text', { class: 'name', y: radius > 9 && run.clients[k].length < 4 ? 4 : radius + 12, 'text-anchor': 'middle' }, shortened(run.clients[k], 12));
      if (clients <= 60) node.append(text);
      const own = value(k, k);
      svg.append(tipped(node, () => `client ${run.clients[k]}${known(own) ? `\nfrom itself: ${(100 * own).toFixed(1)} %` : ''}${run.counts ? `\nclasses: ${classesText(run, k)}` : ''}`));
    }
    return svg;
  });
}
/** A client's classes around a circle. */
function ring(counts, radius) {
  const sum = counts.reduce((a, b) => a + b, 0) || 1;
  let turn = -Math.PI / 2;
  return counts.map((count, c) => {
    const [from, to] = [turn, turn + (2 * Math.PI * count) / sum];
    turn = to;
    const fill = classColour(c, counts.length);
    if (count === sum) return draw('circle', { r: radius, fill });
    if (!count) return '';
    const point = (angle) => `${(radius * Math.cos(angle)).toFixed(2)} ${(radius * Math.sin(angle)).toFixed(2)}`;
    return draw('path', { d: `M0 0L${point(from)}A${radius} ${radius} 0 ${to - from > Math.PI ? 1 : 0} 1 ${point(to)}Z`, fill });
  });
}
/** A bent arrow between two circles: there and back do not lie on each other. */
function arrow([x1, y1], [x2, y2], radius, strength, tell) {
  const far = Math.max(Math.hypot(x2 - x1, y2 - y1), 1);
  const [ux, uy] = [(x2 - x1) / far, (y2 - y1) / far];
  const bend = Math.min(far * 0.14, 26);
  const [mx, my] = [(x1 + x2) / 2 - uy * bend, (y1 + y2) / 2 + ux * bend];
  const away = Math.hypot(x2 - mx, y2 - my) || 1;
  const [vx, vy] = [(x2 - mx) / away, (y2 - my) / away];
  const head = 4 + 3 * strength;
  const [ex, ey] = [x2 - vx * (radius + 2), y2 - vy * (radius + 2)];
  const [bx, by] = [ex - vx * head, ey - vy * head];
  const look = { 'stroke-opacity': 0.25 + 0.6 * strength, 'fill-opacity': 0.25 + 0.6 * strength };
  const group = draw('g', look,
    draw('path', { d: `M${x1} ${y1}Q${mx} ${my} ${bx} ${by}`, fill: 'none', stroke: 'var(--accent)', 'stroke-width': 0.6 + 4 * strength }),
    draw('path', { d: `M${ex} ${ey}L${bx - vy * head * 0.6} ${by + vx * head * 0.6}L${bx + vy * head * 0.6} ${by - vx * head * 0.6}Z`, fill: 'var(--accent)' }));
  return tipped(group, tell);
}

/** Who gains influence: every client's column weight in W, hostile clients told apart. */
function influenceBars(parent, run, at) {
  const hostile = new Set(run.hostile);
  const colour = (k) => (hostile.has(k) ? 'var(--s1)' : 'var(--s0)');
  return figure(parent, {
    title: 'Who has influence: a client’s share of what the others learn',
    legend: hostile.size ? [[areaMark('var(--s0)'), 'honest'], [areaMark('var(--s1)'), 'hostile']] : [],
    how: 'How to read: the bar of client j is the mean, over all learners, of its weight in the mixes of others: the sum of its column of W without itself, divided by the learners, averaged over the recorded rounds. The dashed line is the mean over clients. Whoever is chosen by many stands out.',
  }, (width) => {
    const names = run.order.map((k) => run.clients[k]);
    const values = run.order.map((k) => at.track.influence[k] || 0);
    const row = names.length > 60 ? 9 : 17;
    const left = nameRoom(names) + 4;
    const most = Math.max(...values, 1e-9);
    const px = (value) => left + (value / most) * (width - left - 60);
    const svg = canvas(width, names.length * row + 42);
    run.order.forEach((k, place) => {
      const y = place * row;
      const bar = draw('rect', { x: left, y: y + 1, width: Math.max(px(values[place]) - left, 0.5), height: row - 2, rx: 2, fill: colour(k), 'data-influence': values[place] });
      svg.append(tipped(bar, () => `client ${names[place]}${hostile.has(k) ? ' (hostile)' : ''}: ${(100 * values[place]).toFixed(2)} % of what the others learn`));
      if (row > 10 || place % 3 === 0) svg.append(draw('text', { class: 'name', x: left - 6, y: y + row / 2 + 4, 'text-anchor': 'end' }, shortened(names[place], 16)));
    });
    const mean = values.reduce((a, b) => a + b, 0) / values.length;
    svg.append(draw('line', { x1: px(mean), x2: px(mean), y1: 0, y2: names.length * row, stroke: 'var(--soft)', 'stroke-dasharray': '4 3' }));
    svg.append(draw('text', { x: px(mean), y: names.length * row + 16, 'text-anchor': 'middle' }, `mean ${(100 * mean).toFixed(1)} %`));
    svg.append(draw('text', { x: (left + width) / 2, y: names.length * row + 36, 'text-anchor': 'middle' }, `share of the others’ ${at.track.group}, into ${at.track.target}`));
    return svg;
  });
}
