// The script of the page of the cluster: it replaces the rows that have changed, and filters them.
// The rows are those of the page itself, asked for again; without the script it is loaded again.
'use strict';

(() => {
  const every = 5000; // ms
  const $ = (id) => document.getElementById(id);
  const body = $('nodes'), filter = $('filter');
  let answered = Date.now();
  for (const tr of body.rows) tr.source = tr.outerHTML;

  const arrange = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const tr of body.rows) {
      const text = tr.textContent.toLowerCase();
      tr.hidden = !words.every((w) => text.includes(w));
    }
  };

  const show = (fresh) => {
    const known = new Map([...body.rows].map((tr) => [tr.dataset.node, tr]));
    const rows = [...fresh.getElementById('nodes').rows].map((tr) => {
      const source = tr.outerHTML, old = known.get(tr.dataset.node);
      if (old?.source === source) return old;
      if (old?.querySelector('details')?.open) tr.querySelector('details')?.setAttribute('open', '');
      tr.source = source;
      return tr;
    });
    body.replaceChildren(...rows);
    $('live').replaceChildren(...fresh.getElementById('live').childNodes);
    arrange();
  };

  const refresh = async () => {
    try {
      const response = await fetch(location.pathname, { signal: AbortSignal.timeout(4 * every) });
      if (!response.ok) throw new Error(`status ${response.status}`);
      show(new DOMParser().parseFromString(await response.text(), 'text/html'));
      answered = Date.now();
      $('status').textContent = '';
    } catch (error) {
      $('status').textContent = `Stale for ${Math.round((Date.now() - answered) / 1000)} s: ${error.message}.`;
    }
    $('status').classList.toggle('stale', $('status').textContent !== '');
  };

  const run = async () => {
    if (!document.hidden) await refresh();
    setTimeout(run, every);
  };
  filter.addEventListener('input', arrange);
  $('controls').hidden = false;
  setTimeout(run, every);
})();
