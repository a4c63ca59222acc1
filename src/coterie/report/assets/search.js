// A search for settings: what was tried, and how validation judged it.

/** Values on a line: numbers by their size, by factors if they span many; other values side by side. */
function valueScale(values) {
  const numbers = values.every((value) => typeof value === 'number');
  const different = [...new Set(values)];
  if (!numbers || different.length < 4) {
    const sorted = numbers ? different.sort((a, b) => a - b) : different;
    return { range: [-0.5, sorted.length - 0.5], place: (value) => sorted.indexOf(value), marks: sorted.map((value, i) => [i, String(value)]) };
  }
  const factors = Math.min(...values) > 0 && Math.max(...values) >= 10 * Math.min(...values);
  const place = factors ? Math.log10 : Number;
  const range = extent(values.map(place), 0.06);
  return { range, place, marks: ticks(range, 5).map((at) => [at, plainNumber(factors ? 10 ** at : at)]) };
}
function searched(parent, { metric, options, candidates, best }) {
  const most = Math.max(...candidates.map((one) => one.rounds));
  const y = scoreRange(metric, candidates.map((one) => one.score));
  options.forEach((option, index) => {
    const scale = valueScale(candidates.map((one) => one.values[index]));
    figure(parent, {
      title: `Validation ${metric.name} by ${option}`,
      legend: [[dotMark('var(--s0)'), 'ran to the end'], [dotMark('var(--s5)', true), 'given up on the way'], [dotMark('var(--s1)'), 'chosen']],
      how: `How to read: a dot is a setting that was tried; its height is the best validation ${metric.name} in the rounds that it ran. ${metric.higher ? 'Higher' : 'Lower'} is better. Point at a dot for its settings.`,
    }, (width) => {
      const frame = axes(width, 280, { x: scale.range, y, xTitle: option, yTitle: titled(metric), yText: plainScore(metric), xMarks: scale.marks });
      for (const one of candidates.filter((each) => known(each.score))) {
        const [colour, hollow] = one.name === best ? ['var(--s1)', false] : one.rounds < most ? ['var(--s5)', true] : ['var(--s0)', false];
        const dot = draw('circle', { cx: frame.px(scale.place(one.values[index])), cy: frame.py(one.score), r: one.name === best ? 6.5 : 5, fill: hollow ? 'var(--card)' : colour, stroke: colour, 'stroke-width': 2 });
        frame.svg.append(tipped(dot, () => `${one.name}\n${score(metric, one.score)} after ${one.rounds} rounds`));
      }
      return frame.svg;
    });
  });
}
function searchTable(parent, { metric, options, candidates, best }) {
  const cells = candidates.map((one) => [one.name === best ? `${one.name} ★` : one.name, ...one.values.map(String), String(one.rounds), score(metric, one.score)]);
  parent.append(make('div', { class: 'card' },
    make('h3', {}, 'The settings that were tried'),
    make('div', { class: 'scroll' }, sortable(['settings', ...options, 'rounds', `validation ${metric.name}`], cells)),
    make('p', {}),
    make('p', { class: 'soft' }, 'Validation samples chose, and nothing else: the scores on test samples further down had no say, and are no way to choose.')));
}
