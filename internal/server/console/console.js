// Keeps a page up to date: the server sends sections that have changed, and the
// time. Without this file the page says the same and is loaded again by hand.
'use strict';
(() => {
  const root = document.documentElement;
  const note = document.getElementById('stream');
  const pause = document.getElementById('pause');
  const silent = 5; // seconds without a word, after which the page is old
  const retry = 15; // seconds after which a stream that was refused is asked for again
  let now = null; // the page's own time, which in a demo is not ours
  let heard = Date.now(); // when the server last said anything, on our clock
  let stream = null;

  // The next three say what fill and words in the server say.
  const words = (ms) => {
    const s = Math.max(0, Math.floor(ms / 1000));
    const two = (a, unit, b, smaller) => `${a} ${unit}` + (b ? ` ${b} ${smaller}` : '');
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min`;
    if (s < 86400) return two(Math.floor(s / 3600), 'h', Math.floor(s % 3600 / 60), 'min');
    return two(Math.floor(s / 86400), 'd', Math.floor(s % 86400 / 3600), 'h');
  };
  const clock = (stamp) => (stamp.slice(0, 10) === now.slice(0, 10) ? '' : stamp.slice(5, 10) + ' ') + stamp.slice(11, 19);
  const fill = (node) => {
    const at = Date.parse(now);
    for (const t of node.querySelectorAll('time')) {
      const d = Date.parse(t.dateTime) - at;
      const text = t.className === 'at' ? clock(t.dateTime)
        : t.className === 'age' ? words(-d)
        : d >= 0 ? 'in ' + words(d) : words(-d) + ' over';
      if (t.textContent !== text) t.textContent = text;
    }
  };

  // A section is replaced as a whole; what the reader has folded, scrolled to or put the
  // focus on stays.
  const replace = (html) => {
    const made = new DOMParser().parseFromString(html, 'text/html').body.firstElementChild;
    const old = made && document.getElementById(made.id);
    if (!old) return;
    for (const d of old.querySelectorAll('details[id]')) {
      const same = made.querySelector('#' + CSS.escape(d.id));
      if (same) same.open = d.open;
    }
    const active = old.contains(document.activeElement) ? document.activeElement : null;
    const focus = active && (active.matches('a') ? active : active.querySelector('a'))?.getAttribute('href');
    old.replaceWith(made);
    const again = focus && made.querySelector(`a[href="${CSS.escape(focus)}"]`);
    if (again) (active.matches('a') ? again : again.closest('li')).focus({ preventScroll: true });
    if (made.dataset.title) document.title = made.dataset.title;
    if (now) fill(made);
  };

  const say = (state, text) => {
    root.dataset.stream = state;
    if (note.textContent !== text) note.textContent = text;
  };
  const follow = () => {
    stream = new EventSource(document.body.dataset.events);
    stream.addEventListener('section', (e) => replace(e.data));
    stream.addEventListener('parts', (e) => {
      const whole = document.getElementById('fleet');
      for (const part of [...whole.children]) if (!(Number(part.id.slice(1)) < Number(e.data))) part.remove();
      while (whole.children.length < Number(e.data)) whole.append(Object.assign(document.createElement('div'), { id: 'g' + whole.children.length }));
    });
    stream.addEventListener('now', (e) => {
      now = e.data;
      heard = Date.now();
      fill(document);
      say('live', '● Live, times are UTC');
    });
  };
  // A browser has few connections to one server: a page that nobody sees keeps none.
  document.addEventListener('visibilitychange', () => {
    stream.close();
    if (!document.hidden && root.dataset.stream !== 'paused') follow();
  });
  pause.hidden = false;
  pause.addEventListener('click', () => {
    const stop = root.dataset.stream !== 'paused';
    pause.setAttribute('aria-pressed', String(stop));
    pause.textContent = stop ? 'Follow again' : 'Pause updates';
    stream.close();
    heard = Date.now();
    say(stop ? 'paused' : 'waiting', stop ? '' : 'Connecting…');
    if (!stop) follow();
  });
  setInterval(() => {
    const age = Math.floor((Date.now() - heard) / 1000);
    const since = now ? `, of ${clock(now)} UTC` : '';
    if (root.dataset.stream === 'paused') return say('paused', `‖ Paused: this page is ${words(age * 1000)} old${since}`);
    if (age >= silent) say('stale', `⚠ No word from Stoker for ${words(age * 1000)}: this page is old${since}`);
    if (!document.hidden && stream.readyState === EventSource.CLOSED && age % retry === retry - 1) follow();
  }, 1000);
  follow();
})();
