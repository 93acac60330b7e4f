// The script of the pages: it asks for the page again, changes what differs in place, sorts and
// filters the rows, and shows details in a dialog. The server alone lays out the rows; without the
// script the page is loaded again.
'use strict';

(() => {
  const every = 5000; // ms
  const $ = (id) => document.getElementById(id);
  if (!document.querySelector('main')) { // no snapshot yet
    setTimeout(() => location.reload(), 1000);
    return;
  }

  // Links to details become addresses of this page, which shows them in the dialog. Those of charts
  // have no a.search.
  const address = (kind, name) => `#${kind}=${encodeURIComponent(name).replaceAll('%2F', '/')}`;
  const localize = (root) => {
    for (const a of root.querySelectorAll('a[href^="page/detail?"], a[href^="?"]')) {
      const [kind, name] = [...new URLSearchParams(a.getAttribute('href').split('?')[1])][0];
      a.setAttribute('href', address(kind, name));
      if (name !== a.textContent && !root.matches('.detail')) a.setAttribute('title', name);
    }
    root.querySelectorAll('button:disabled').forEach((b) => { b.disabled = false; }); // they need the script
  };

  // renew changes an element to one of the new page, unless it is as before. What was unfolded
  // stays so, and what has the focus keeps it.
  const renew = (old, fresh) => {
    const source = fresh.outerHTML;
    if (old.source === source) return;
    old.source = source;
    localize(fresh);
    if (old !== fresh) {
      const parts = () => [...old.querySelectorAll('a, button, summary')];
      const at = parts().indexOf(document.activeElement);
      const open = [...old.querySelectorAll('details')].map((d) => d.open);
      for (const name of old.getAttributeNames()) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
      for (const { name, value } of fresh.attributes) old.setAttribute(name, value);
      old.replaceChildren(...fresh.childNodes);
      old.querySelectorAll('details').forEach((d, i) => { d.open = open[i] ?? false; });
      parts()[at]?.focus({ preventScroll: true });
    }
  };

  const names = new Intl.Collator('en', { numeric: true });

  let words = [], state = '';
  // A Table shows its first rows until a person wants all: a limit keeps the tables near each other.
  class Table {
    constructor(table) {
      this.section = table.parentElement;
      this.body = table.tBodies[0];
      this.few = this.limit = Number(this.section.dataset.limit ?? Infinity);
      Object.assign(this, { by: -1, up: false });
      this.more = document.createElement('button');
      Object.assign(this.more, { type: 'button', className: 'more', hidden: true });
      this.section.append(this.more);
      this.more.addEventListener('click', () => {
        this.limit = this.limit === this.few ? Infinity : this.few;
        this.arrange();
      });
      this.heads = [...table.querySelectorAll('th')];
      this.heads.forEach((th, i) => {
        const button = document.createElement('button');
        button.type = 'button';
        button.append(...th.childNodes);
        button.addEventListener('click', () => this.sortBy(i));
        th.append(button);
      });
    }

    // sortBy sorts by a column, then the other way round, then as the exporter does.
    sortBy(i) {
      const first = !this.heads[i].matches('.n, [data-falls]'); // names rise, and numbers fall
      if (this.by !== i) Object.assign(this, { by: i, up: first });
      else if (this.up === first) this.up = !first;
      else this.by = -1;
      this.heads.forEach((th, j) => {
        if (j !== this.by) th.removeAttribute('aria-sort');
        else th.setAttribute('aria-sort', this.up ? 'ascending' : 'descending');
      });
      this.arrange();
    }

    // show shows the rows of the same table of a new page. A row keeps its element.
    show(fresh) {
      this.section.hidden = fresh.parentElement.hidden;
      const known = new Map((this.rows ?? []).map((tr) => [tr.key, tr]));
      this.nothing?.remove();
      this.nothing = null;
      this.rows = [];
      for (const row of [...fresh.tBodies[0].rows]) {
        if (row.querySelector('td[colspan]')) {
          this.nothing = row;
          continue;
        }
        const key = row.dataset.node ??
          [row.cells[0], row.cells[2]].map((td) => td.querySelector('a')?.getAttribute('href')).join();
        const tr = known.get(key) ?? row, source = row.outerHTML;
        known.delete(key);
        Object.assign(tr, { key, order: this.rows.length });
        this.rows.push(tr);
        if (tr.source === source) continue;
        tr.source = source;
        [...row.cells].forEach((td, i) => renew(tr.cells[i], td));
        if (row.dataset.state) tr.dataset.state = row.dataset.state;
        const linked = [...tr.querySelectorAll('a')].map((a) => decodeURIComponent(a.hash.slice(a.hash.indexOf('=') + 1)));
        tr.words = [tr.textContent, ...linked].join(' ').toLowerCase();
      }
      known.forEach((tr) => tr.remove());
      this.arrange();
    }

    arrange() {
      const sign = this.up ? 1 : -1, sorted = this.heads[this.by]; // undefined: as the exporter sorts them
      const lacks = (td) => Number(!td.textContent); // absent values are last, either way
      const compare = (a, b) => lacks(a) - lacks(b) || sign * (a.dataset.n && b.dataset.n ? a.dataset.n - b.dataset.n :
        names.compare(a.textContent, b.textContent));
      const all = this.rows.toSorted((a, b) => {
        if (sorted?.hasAttribute('data-rank')) return sign * (a.order - b.order);
        return (sorted && compare(a.cells[this.by], b.cells[this.by])) || a.order - b.order;
      });
      const focused = document.activeElement;
      let found = 0, at = this.body.firstElementChild;
      for (const tr of all) {
        const fits = words.every((w) => tr.words.includes(w)) && (!state || (tr.dataset.state ?? state) === state);
        if (fits) found++;
        tr.hidden = !fits || found > this.limit;
        if (tr === at) at = at.nextElementSibling;
        else this.body.insertBefore(tr, at);
      }
      if (focused !== document.activeElement) focused.focus({ preventScroll: true });
      if (this.nothing) this.body.append(this.nothing);
      const count = this.section.querySelector('h2 small');
      if (count) count.textContent = found === all.length ? found : `${found} of ${all.length}`;
      this.more.hidden = found <= this.few;
      this.more.textContent = found > this.limit ? `Show all ${found}` : `Show the first ${this.few}`;
    }
  }

  const tablesOf = (page) => [...page.querySelectorAll('main:not(.detail) table')];
  const tables = tablesOf(document).map((table) => new Table(table));
  const arrange = () => tables.forEach((t) => t.arrange());

  // The tiles show the rows of one state.
  const tiles = () => [...document.querySelectorAll('#tiles button')];
  const showTiles = () => {
    if (!tiles().some((t) => t.dataset.state === state)) state = '';
    for (const t of tiles()) t.setAttribute('aria-pressed', String(t.dataset.state === state));
  };
  document.addEventListener('click', (e) => {
    const tile = e.target.closest?.('#tiles button');
    if (!tile) return;
    state = state === tile.dataset.state ? '' : tile.dataset.state;
    showTiles();
    arrange();
  });

  const show = (page) => {
    const fresh = tablesOf(page);
    if (fresh.length < tables.length) throw new Error('no snapshot yet');
    for (const part of document.querySelectorAll('[data-live]')) renew(part, page.getElementById(part.id));
    showTiles();
    tables.forEach((t, i) => t.show(fresh[i]));
  };

  // The status says how old the rows are once the exporter does not answer.
  let latest = $('status').textContent, answered = Date.now(), trouble = '';
  const showStatus = () => {
    const seconds = Math.round((Date.now() - answered) / 1000);
    $('status').classList.toggle('stale', trouble !== '');
    $('status').textContent = trouble ? `Stale for ${seconds} s: ${trouble}.` : latest;
  };

  const refresh = async () => {
    try {
      const response = await fetch(location.pathname, { signal: AbortSignal.timeout(4 * every) });
      if (!response.ok) throw new Error(`status ${response.status}`);
      const page = new DOMParser().parseFromString(await response.text(), 'text/html');
      show(page);
      latest = page.getElementById('status').textContent;
      answered = Date.now();
      trouble = '';
      await showDetail();
    } catch (error) {
      trouble = error.message;
    }
    showStatus();
  };

  let timer;
  const run = async () => {
    clearTimeout(timer);
    if (!document.hidden) await refresh();
    timer = setTimeout(run, every);
  };

  // Details are those of the address: #claim=NAMESPACE/NAME, #pod=NAMESPACE/NAME, #device=NAME or
  // #incident=ID.
  const dialog = $('detail'), inside = dialog?.querySelector('div');
  let shown = '';
  const asked = () => {
    const found = dialog && /^#(claim|pod|device|incident)=(.+)$/.exec(location.hash);
    try {
      return found && { kind: found[1], name: decodeURIComponent(found[2]) };
    } catch {
      return null; // a lone %
    }
  };
  const queryOf = (of) => (of ? `${of.kind}=${encodeURIComponent(of.name)}` : '');
  const showDetail = async () => {
    const query = queryOf(asked());
    if (!query) {
      if (dialog?.open) dialog.close();
      shown = '';
      return;
    }
    if (shown === query && getSelection().toString() && inside.contains(getSelection().anchorNode)) return;
    const response = await fetch(`page/detail?${query}`);
    const main = new DOMParser().parseFromString(await response.text(), 'text/html').querySelector('main');
    if (queryOf(asked()) !== query) return; // another address since: its details are asked for
    if (main) localize(main);
    const top = shown === query ? dialog.scrollTop : 0;
    const open = shown === query && [...inside.querySelectorAll('details')].map((d) => d.open);
    inside.replaceChildren(main ?? 'There is no snapshot yet.');
    inside.querySelectorAll('details').forEach((d, i) => { d.open = open[i] ?? false; });
    shown = query;
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = top;
  };
  addEventListener('hashchange', () => showDetail().catch((error) => { trouble = error.message; showStatus(); }));
  // The browser says later that the dialog was closed: the address may be another by then.
  dialog?.addEventListener('close', () => {
    if (dialog.open) return;
    if (shown && queryOf(asked()) === shown) history.replaceState(null, '', location.pathname + location.search);
    shown = '';
  });
  dialog?.addEventListener('click', (e) => { if (e.target === dialog) dialog.close(); });

  const filter = $('filter');
  filter.addEventListener('input', () => {
    words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    arrange();
  });
  addEventListener('keydown', (e) => {
    if (dialog?.open || e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key === 'Escape') {
      filter.value = state = '';
      words = [];
      filter.blur();
      showTiles();
      arrange();
    } else if (e.target === filter) {
      return;
    } else if (e.key === '/') {
      e.preventDefault();
      filter.focus();
    } else if (e.key === 'r') {
      run();
    }
  });
  document.addEventListener('visibilitychange', () => { if (!document.hidden) run(); });
  show(document);
  $('controls').hidden = false;
  setInterval(() => { if (trouble) showStatus(); }, 1000);
  if (asked()) showDetail().catch((error) => { trouble = error.message; showStatus(); });
  timer = setTimeout(run, every);
})();
