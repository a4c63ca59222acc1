// The figures of the page as texts, where there is no browser: files and notebooks. The first of the scripts there.

/** As much of a page's elements as figures use. `COLOURS` are those of the page's style by name. */
class Element {
  constructor(name) { Object.assign(this, { name, attributes: {}, style: {}, children: [] }); }
  setAttribute(name, value) { this.attributes[name] = value; }
  append(...children) {
    for (const one of children) if (one instanceof Element) one.parent = this;
    this.children.push(...children);
  }
  replaceChildren(...children) { this.children = children; }
  addEventListener() {}
}
const document = { createElement: (name) => new Element(name), createElementNS: (_, name) => new Element(name) };
const PANEL = { usual: 540, wide: 860 };
class ResizeObserver {
  constructor(tell) { this.tell = tell; }
  observe({ parent }) { this.tell([{ contentRect: { width: PANEL[parent.attributes.class || 'usual'] } }]); }
}

const escaped = (text) => text.replace(/[&<>"]/g, (letter) => `&#${letter.codePointAt(0)};`).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, '\ufffd');
const channels = (colour) => [1, 3, 5].map((place) => parseInt(colour.slice(place, place + 2), 16));
/** A colour of the page as a number: names and mixtures are those of its style, on light ground. */
function plainColour(colour) {
  const mixed = /^color-mix\(in srgb, (\S+) (\d+)%, (\S+)\)$/.exec(colour);
  if (mixed) {
    const [more, less] = [mixed[1], mixed[3]].map((one) => channels(plainColour(one)));
    return `#${more.map((value, i) => Math.round((value * mixed[2] + less[i] * (100 - mixed[2])) / 100).toString(16).padStart(2, '0')).join('')}`;
  }
  const named = /^var\(--([a-z0-9-]+)\)$/.exec(colour);
  return named ? COLOURS[named[1]] : colour === 'transparent' ? 'none' : colour;
}
/** What the page's style says of an element. */
function styled({ name, attributes }) {
  const kinds = (attributes.class || '').split(' ');
  if (name === 'text') return { fill: kinds.includes('name') ? 'var(--ink)' : 'var(--soft)', 'font-size': 11.5 };
  return kinds.includes('axis') ? { fill: 'none', stroke: `var(--${kinds.includes('strong') ? 'soft' : 'line'})`, 'stroke-width': 1 } : {};
}
function written(node) {
  if (!(node instanceof Element)) return escaped(String(node));
  const look = { ...styled(node), ...node.attributes, ...node.style };
  // What is there to be pointed at is not to be seen.
  if (look.visibility === 'hidden' || (look.fill === 'transparent' && !look.stroke)) return '';
  const told = Object.entries(look).filter(([name, value]) => name !== 'class' && value !== '').map(([name, value]) => ` ${name}="${escaped(name === 'fill' || name === 'stroke' ? plainColour(value) : typeof value === 'number' ? String(Number(value.toFixed(4))) : String(value))}"`);
  const inside = node.children.map(written).join('');
  return `<${node.name}${told.join('')}${inside ? `>${inside}</${node.name}>` : '/>'}`;
}

/** Words in lines of about so many pixels, by the mean width of a letter. */
function wrapped(text, width, letter) {
  const found = [''];
  for (const word of text.split(' ')) {
    const longer = `${found[found.length - 1]} ${word}`.trim();
    if (longer.length * letter > width && found[found.length - 1]) found.push(word);
    else found[found.length - 1] = longer;
  }
  return found;
}
const line = (text, x, y, size, look = {}) => draw('text', { x, y, 'font-size': size, ...look }, text);

/** A figure of the page with its title and legend above it: an element, and how high title and legend are. */
function panel({ children: [title, legend, plot], attributes }) {
  const width = PANEL[attributes.class || 'usual'];
  const head = draw('g');
  let y = 0;
  const name = title.children.join('');
  if (name) for (const text of wrapped(name, width, 8)) head.append(line(text, 0, y += 19, 15, { 'font-weight': 600, class: 'name' }));
  let x = 0;
  if (legend.children.length) y += 20;
  for (const { children: [mark, text] } of legend.children) {
    const room = mark.attributes.width + 6 + text.length * 6.4 + 14;
    if (x && x + room > width) [x, y] = [0, y + 18];
    mark.setAttribute('x', x);
    mark.setAttribute('y', y - mark.attributes.height);
    head.append(mark, line(text, x + mark.attributes.width + 6, y, 12.5));
    x += room;
  }
  return { name, width: plot.children[0].attributes.width, head, top: y + 14, plot: plot.children[0] };
}

/** Figures side by side, as many in a row as there is room for, as one SVG; nothing if there are none. A heading is the title of a figure without one. */
function sheet(figures, heading) {
  const [margin, gap, most] = [18, 36, 3 * PANEL.usual + 2 * 36];
  const panels = figures.map(panel);
  if (!panels.length) return '';
  const rows = [[]];
  for (const one of panels) {
    const used = rows[rows.length - 1].reduce((sum, other) => sum + other.width + gap, 0);
    if (used && used + one.width > most) rows.push([]);
    rows[rows.length - 1].push(one);
  }
  const all = draw('g');
  let y = margin;
  heading.forEach((text, at) => {
    const titles = at === 0 && !panels[0].name;
    all.append(line(text, margin, (y += titles ? 16 : 17), titles ? 15 : 12.5, titles ? { 'font-weight': 600, class: 'name' } : {}));
  });
  let right = 0;
  for (const row of rows) {
    const top = Math.max(...row.map((one) => one.top));
    let x = margin;
    for (const { width, head, plot } of row) {
      head.setAttribute('transform', `translate(${x} ${y})`);
      const inside = draw('g', { transform: `translate(${x} ${y + top})` });
      inside.children = plot.children;
      all.append(head, inside);
      x += width + gap;
    }
    right = Math.max(right, x - gap);
    y += top + Math.max(...row.map((one) => one.plot.attributes.height)) + gap;
  }
  const [width, height] = [right + margin, Math.ceil(y - gap + margin)];
  return written(draw('svg', { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}`, 'font-family': 'Helvetica, Arial, Liberation Sans, DejaVu Sans, sans-serif' }, draw('rect', { width, height, fill: '#ffffff' }), all));
}

/** Figures of who learns from whom, for the first of the tracks or for each; their titles say which it is, and the round. */
const ofTracks = (paint, most, dated) => (parent, run) => {
  for (const track of run.learning.slice(0, most)) {
    const before = parent.children.length;
    paint(parent, run, { track, t: track.start });
    for (const one of parent.children.slice(before)) one.children[0].append(` (${track.group}, into ${track.target}${dated ? `, round ${track.rounds[track.start]}` : ''})`);
  }
};
const FIGURES = {
  curves: runCurves, training: trainingCurve, clients: clientRows, partition: bubbles, recall: recallGrid, ranking, calibration: (parent, run) => calibration(parent, run),
  learning: (parent, run) => { ofTracks(weights, 1, true)(parent, run); if (run.learning.length) overlapOfClasses(parent, run); },
  graph: ofTracks(graph, 1, true), influence: ofTracks(influenceBars),
  agreement: ofTracks((parent, run, at) => { if (at.track.agreement) agreementCurve(parent, run, at); }),
  bytes: bytesMoved, seconds: secondsTaken,
  methods: methodCurves, 'against-bytes': againstBytes, 'against-seconds': againstSeconds, gains, recalls: methodRecalls, rankings: methodRankings, calibrations: methodCalibrations,
  search: searched,
  mixing: (parent, run) => weights(parent, run, { track: run.learning[0], t: 0 }, { title: '', wide: true, beside: run.classes.length > 0 }),
};
let content = null;
function begin(text) { content = JSON.parse(text); }
/** A figure of the content by its name, with lines above it, as JSON of its SVG; an empty one without numbers for one. */
function drawn(name, heading) {
  const parent = make('div');
  FIGURES[name](parent, content);
  return JSON.stringify(sheet(parent.children.filter((one) => one.name === 'figure'), JSON.parse(heading)));
}
