// What the pages of a federation's server and of a site share: they ask every other second how it stands.

const EVERY = 2000;
const ACCURACY = { name: 'accuracy', share: true, higher: true };
const home = document.getElementById('page');

/** A word on how something stands: `good`, `busy`, `bad` or nothing. */
const chip = (text, kind = '') => make('span', { class: `chip ${kind}` }, text);
const tile = (value, text, note = '') => make('div', { class: 'tile' }, make('b', {}, value), make('span', {}, text), ...(note ? [make('span', { class: 'note' }, note)] : []));
const share = (value) => score(ACCURACY, value);
const points = (value) => `${value < 0 ? '−' : '+'}${Math.abs(value).toFixed(1)}`;
function ago(then) {
  const passed = Math.max(0, (Date.now() - Date.parse(then)) / 1000);
  return passed < 90 ? 'just now' : passed < 5400 ? `${Math.round(passed / 60)} min ago` : passed < 129600 ? `${Math.round(passed / 3600)} h ago` : `${Math.round(passed / 86400)} days ago`;
}
function table(titles, rows, kind = '') {
  const head = make('tr', {}, ...titles.map((title) => make('th', {}, title)));
  const cells = (row) => row.map((cell) => make('td', {}, cell));
  return make('div', { class: 'scroll' }, make('table', kind ? { class: kind } : {}, make('thead', {}, head), make('tbody', {}, ...rows.map((row) => make('tr', {}, ...cells(row))))));
}

/** Ask for the content again and again; draw it where it has changed. */
function follow(paint, gone) {
  const body = make('div');
  const lost = make('div', { class: 'card wrong', hidden: '' }, make('h3', {}, gone));
  home.replaceChildren(lost, body, tip);
  let before = '';
  const look = async () => {
    try {
      const text = await (await fetch('/status')).text();
      lost.hidden = true;
      if (text !== before) {
        const top = window.scrollY;
        body.replaceChildren(...paint(JSON.parse(text)));
        window.scrollTo(0, top);
        before = text;
      }
    } catch (error) {
      lost.hidden = false;
      before = '';
    }
    setTimeout(look, EVERY);
  };
  look();
}
