// The switch between light and dark, which begins with what the visitor's system prefers.

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
