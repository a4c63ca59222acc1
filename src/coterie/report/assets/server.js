// The server's page: which sites are here, how the rounds go, who learns from whom.

const SPOKEN = { answered: 'answered', unanswered: 'no answer', refused: 'refused', lost: 'disk lost', set_aside: 'set aside' };

function sitesTable(state) {
  const shown = Object.keys(SPOKEN).filter((what) => what === 'answered' || state.sites.some((one) => one.counts[what]));
  const rows = state.sites.map((one) => [
    make('span', {}, make('span', { class: `dot ${one.here ? 'good' : ''}`, title: one.here ? 'here' : 'away' }), one.name, ...(one.quarantined ? [' ', chip('quarantine', 'bad')] : [])),
    known(one.samples.train) && one.samples.train ? String(one.samples.train) : '–', known(one.samples.test) && one.samples.test ? String(one.samples.test) : '–',
    ...shown.map((what) => String(one.counts[what])), known(one.last_round) ? `round ${one.last_round}` : '–', share(one.received), share(one.trained),
  ]);
  return make('figure', { class: 'wide' }, make('h3', {}, 'Sites'), table(['site', 'trains on', 'tests on', ...shown.map((what) => SPOKEN[what]), 'last answer', 'received', 'trained'], rows, 'sites'),
    make('figcaption', {}, 'How to read: a filled dot is a site that is connected. Numbers of samples and scores are those that the sites report themselves; “trained” is right after local training, “received” what a site gets from the others afterwards.'));
}

function progress(parent, state) {
  const told = state.lines.filter((line) => known(line.trained) || known(line.received));
  if (!told.length) return;
  const series = [['received', 'as received, before local training', 'var(--s0)', ''], ['trained', 'right after local training', 'var(--s6)', '2 3']].map(([moment, long, colour, dash]) => {
    const there = told.filter((line) => known(line[moment]));
    return { label: moment, long, colour, dash, xs: there.map((line) => line.round), ys: there.map((line) => line[moment]) };
  }).filter((one) => one.xs.length);
  figure(parent, {
    title: `${capital(state.metric)}, mean over the sites that answered`,
    legend: series.map((one) => [lineMark(one.colour, one.dash), one.long]),
    how: 'How to read: each site is tested on its own held-out samples. What a site receives after a round is known when it is asked again.',
  }, (width) => lines(width, Math.min(430, Math.max(280, width * 0.72)), { series, y: scoreRange(ACCURACY, series.flatMap((one) => one.ys)), xTitle: 'round', yTitle: titled({ ...ACCURACY, name: state.metric }), yText: plainScore(ACCURACY) }));
}

function whoFromWhom(parent, run) {
  if (!run || !run.learning) {
    parent.append(make('figure', {}, make('h3', {}, 'Who learns from whom'), make('p', { class: 'soft' }, 'It is drawn as soon as a round has mixed models.')));
    return;
  }
  const { learning: track, clients } = run;
  figure(parent, {
    title: `Who learns from whom, round ${track.rounds[0]}: ${track.group}`,
    legend: track.weights.some((one) => one.includes(-1)) ? [[areaMark('var(--absent)'), 'took no part']] : [],
    how: 'How to read: row by row, from whom a site learned, and how much.',
  }, (width) => matrix(width, { clients, order: clients.map((_, k) => k) }, {
    value: (i, j) => weightOf(track, 0, clients.length, i, j), most: largest(track, clients.length), rowTitle: 'learns', columnTitle: 'from',
    tell: (i, j, found) => `${clients[i]} from ${clients[j]}: ${known(found) ? `${(100 * found).toFixed(1)} %` : 'took no part'}`,
  }));
}

function roundsTable(state) {
  const rows = [...state.lines].reverse().slice(0, 30).map((line) => [
    String(line.round), make('span', { title: (line.answered || []).join(', ') }, `${(line.answered || []).length} of ${state.sites.length}`), (line.unanswered || []).join(', '), Object.keys(line.refused || {}).concat(Object.keys(line.set_aside || {})).join(', '),
    share(line.received), share(line.trained), seconds(Number(line.seconds.toFixed(1))), bytes(line.bytes.down), bytes(line.bytes.up),
  ]);
  return make('div', { class: 'card' }, table(['round', 'answered', 'no answer', 'refused', 'received', 'trained', 'took', 'sent out', 'came in'], rows, 'rounds answers'));
}

const KINDS = { finished: 'good', running: 'busy', failed: 'bad' };
follow((state) => {
  const { status, lines } = state;
  const here = state.sites.filter((one) => one.here).length;
  const last = (moment) => [...lines].reverse().map((line) => line[moment]).find(known);
  const total = (way) => lines.reduce((sum, line) => sum + line.bytes[way], 0);
  const standing = status.state || 'starting';
  const parts = [
    make('header', {}, make('div', {}, make('h1', {}, state.federation, ' ', chip(standing, KINDS[standing])), make('p', { class: 'soft' }, `${state.method} · ${state.sites.length} sites · ${state.folder}`)), schemeSwitch()),
  ];
  if (state.problem) parts.push(make('div', { class: 'card wrong' }, make('h3', {}, 'Something is wrong'), make('p', {}, state.problem)));
  else if (status.message) parts.push(make('p', { class: 'now' }, capital(status.message)));
  const grid = make('div', { class: 'grid' });
  parts.push(make('div', { class: 'tiles' },
    tile(`${lines.length} of ${state.rounds}`, 'rounds'), tile(`${here} of ${state.sites.length}`, 'sites are here'), tile(share(last('received')), `${state.metric} received, mean`), tile(share(last('trained')), `${state.metric} trained, mean`),
    tile(lines.length ? seconds(Number(lines[lines.length - 1].seconds.toFixed(1))) : '–', 'the last round took'), tile(bytes(total('down') + total('up')), 'models travelled', `${bytes(total('down'))} out, ${bytes(total('up'))} in`)),
  make('h2', {}, 'How it goes'), grid);
  grid.append(sitesTable(state));
  progress(grid, state);
  whoFromWhom(grid, state.run);
  if (lines.length) parts.push(make('h2', {}, 'Rounds'), roundsTable(state));
  const log = state.run ? state.run.log.slice(-15).join('\n') : '';
  if (log) parts.push(make('h2', {}, 'The end of the log'), make('div', { class: 'card' }, make('pre', {}, log)));
  parts.push(make('p', { class: 'soft foot' }, `Read from ${state.folder}; “coterie report” makes a page of it that stays. Coterie ${state.version}.`));
  return parts;
}, 'The server’s command has ended: start it again to see how it goes.');
