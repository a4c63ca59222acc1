// What all figures are made of: elements, scales, axes, legends, the tooltip. Text from files is only ever set as text.

const SVG = 'http://www.w3.org/2000/svg';
const SERIES = 8;

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === 'fill' || name === 'stroke') element.style[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}
const make = (name, attributes = {}, ...children) => filled(document.createElement(name), attributes, children);
const draw = (name, attributes = {}, ...children) => filled(document.createElementNS(SVG, name), attributes, children);

const seriesColour = (index) => `var(--s${index % SERIES})`;
const seriesDash = (index) => ['', '6 4', '2 3'][Math.floor(index / SERIES) % 3];
function classColour(index, classes) {
  if (classes <= 10) return `var(--c${index})`;
  return along(['--ramp0', '--ramp1', '--ramp2'], index / (classes - 1));
}
/** A colour between three, at a place from 0 to 1. In sRGB, which whoever draws without a browser can mix too. */
function along([low, middle, high], place) {
  const [from, to, part] = place < 0.5 ? [low, middle, 2 * place] : [middle, high, 2 * place - 1];
  return `color-mix(in srgb, var(${to}) ${Math.round(100 * part)}%, var(${from}))`;
}
/** The colour of a share of the largest weight; it follows the square root, or what clients take from themselves hides the rest. */
const heatColour = (share) => along(['--w0', '--w1', '--w2'], Math.sqrt(Math.max(0, Math.min(1, share))));

const known = (value) => value !== null && value !== undefined;
function score(metric, value) {
  if (!known(value)) return '–';
  return metric.share ? `${(100 * value).toFixed(1)} %` : Number(value.toPrecision(4)).toString();
}
function amount(value, units) {
  let step = 0;
  while (value >= 1000 && step < units.length - 1) { value /= 1000; step += 1; }
  return `${value >= 100 || value === Math.round(value) ? Math.round(value) : value.toPrecision(3)} ${units[step]}`;
}
const bytes = (value) => amount(value, ['B', 'kB', 'MB', 'GB', 'TB']);
const seconds = (value) => (value < 120 ? `${Number(value.toPrecision(3))} s` : value < 7200 ? `${(value / 60).toFixed(1)} min` : `${(value / 3600).toFixed(1)} h`);
/** The unit in which times up to so many seconds are read: its name, and its seconds. */
const timeUnit = (most) => (most < 180 ? ['seconds', 1] : most < 10800 ? ['minutes', 60] : ['hours', 3600]);
const plainNumber = (value) => String(Number(value.toPrecision(3)));
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const shortened = (name, most) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);

/** The largest of values, of which there may be more than a function takes arguments. */
const highest = (values, least = -Infinity) => values.reduce((most, value) => Math.max(most, value), least);
function extent(values, pad = 0) {
  const numbers = values.filter(known);
  if (!numbers.length) return [0, 1];
  const low = -highest(numbers.map((value) => -value)), high = highest(numbers);
  const room = (high - low || Math.abs(high) || 1) * pad;
  return [low - room, high + room];
}
function ticks([low, high], count) {
  const rough = (high - low) / Math.max(count, 1) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((one) => one >= rough * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return found;
}

const tip = make('div', { id: 'tip', role: 'status' });
function showTip(event, text) {
  tip.textContent = text;
  tip.style.opacity = text ? 1 : 0;
  const right = event.clientX > window.innerWidth - 250;
  tip.style.left = right ? '' : `${event.clientX + 14}px`;
  tip.style.right = right ? `${window.innerWidth - event.clientX + 14}px` : '';
  tip.style.top = `${Math.max(8, event.clientY - 12)}px`;
}
function tipped(element, text) {
  element.addEventListener('pointermove', (event) => showTip(event, text()));
  element.addEventListener('pointerleave', (event) => showTip(event, ''));
  return element;
}

/** A figure that is drawn anew whenever its width changes; `paint(width)` gives its SVG. */
function figure(parent, { title, how, legend = [], wide = false }, paint) {
  const plot = make('div', { class: 'plot' });
  const marks = make('div', { class: 'legend' }, ...legend.map(([mark, text]) => make('span', {}, mark(), text)));
  const whole = make('figure', wide ? { class: 'wide' } : {}, make('h3', {}, title), marks, plot, make('figcaption', {}, how));
  parent.append(whole);
  let width = 0;
  const redraw = () => {
    const svg = paint(width);
    svg.setAttribute('role', 'img');
    svg.setAttribute('aria-label', title);
    plot.replaceChildren(svg);
  };
  new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (now > 0 && now !== width) { width = now; redraw(); }
  }).observe(plot);
  return { redraw: () => { if (width) redraw(); } };
}
const canvas = (width, height) => draw('svg', { viewBox: `0 0 ${width} ${height}`, width, height });
const lineMark = (colour, dash = '') => () => {
  const svg = canvas(22, 10);
  svg.append(draw('line', { x1: 0, x2: 22, y1: 5, y2: 5, stroke: colour, 'stroke-width': 2.5, 'stroke-dasharray': dash }));
  return svg;
};
const areaMark = (colour, opacity = 1) => () => {
  const svg = canvas(12, 12);
  svg.append(draw('rect', { width: 12, height: 12, rx: 3, fill: colour, 'fill-opacity': opacity }));
  return svg;
};
const dotMark = (colour, hollow = false) => () => {
  const svg = canvas(12, 12);
  svg.append(draw('circle', { cx: 6, cy: 6, r: 4, fill: hollow ? 'var(--card)' : colour, stroke: colour, 'stroke-width': 2 }));
  return svg;
};

/** Axes with titles and units: gives the SVG and the places of values. */
function axes(width, height, { x, y, xTitle, yTitle, xText = String, yText = String, left = 52, xMarks }) {
  const [top, right, bottom] = [20, 12, 40];
  const svg = canvas(width, height);
  const px = (value) => left + ((value - x[0]) / (x[1] - x[0] || 1)) * (width - left - right);
  const py = (value) => height - bottom - ((value - y[0]) / (y[1] - y[0] || 1)) * (height - top - bottom);
  for (const at of ticks(y, Math.max(2, (height - 60) / 46))) {
    svg.append(draw('line', { class: 'axis', x1: left, x2: width - right, y1: py(at), y2: py(at) }));
    svg.append(draw('text', { x: left - 8, y: py(at) + 4, 'text-anchor': 'end' }, yText(at)));
  }
  const whole = xTitle === 'round' ? Number.isInteger : () => true;
  const marks = xMarks || ticks(x, Math.max(2, (width - left) / 90)).filter(whole).map((at) => [at, xText(at)]);
  for (const [at, text] of marks) {
    svg.append(draw('line', { class: 'axis', x1: px(at), x2: px(at), y1: height - bottom, y2: height - bottom + 5 }));
    svg.append(draw('text', { x: px(at), y: height - bottom + 18, 'text-anchor': 'middle' }, text));
  }
  svg.append(draw('line', { class: 'axis strong', x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
  svg.append(draw('text', { x: (left + width - right) / 2, y: height - 4, 'text-anchor': 'middle' }, xTitle));
  svg.append(draw('text', { x: 0, y: 10 }, yTitle));
  return { svg, px, py, left, right: width - right, top, bottom: height - bottom };
}
function path(points) {
  let pen = 'M';
  return points.map(([x, y]) => {
    if (!known(x) || !known(y)) { pen = 'M'; return ''; }
    const step = `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
    pen = 'L';
    return step;
  }).join('');
}
function band(xs, low, high) {
  const there = xs.map((_, i) => i).filter((i) => known(low[i]) && known(high[i]));
  if (!there.length) return '';
  return `${path(there.map((i) => [xs[i], high[i]]))}${path(there.reverse().map((i) => [xs[i], low[i]])).replace('M', 'L')}Z`;
}

/** The switch between light and dark, which begins with what the visitor's system prefers. */
function schemeSwitch() {
  const root = document.documentElement;
  const button = make('button', { type: 'button', id: 'scheme' });
  const dark = () => (root.dataset.scheme ? root.dataset.scheme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches);
  const say = () => { button.textContent = dark() ? '☀ light' : '☾ dark'; };
  button.addEventListener('click', () => { root.dataset.scheme = dark() ? 'light' : 'dark'; say(); });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', say);
  say();
  return button;
}
