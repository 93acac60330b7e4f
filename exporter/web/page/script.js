// The script of the page: it replaces the rows in place, sorts and filters them, and shows details.
// All texts become text nodes. The page works without it, by refresh.
'use strict';

(() => {
  const every = 5000; // ms
  const $ = (id) => document.getElementById(id);
  if (!$('devices')) { // no snapshot yet
    setTimeout(() => location.reload(), 1000);
    return;
  }

  // element makes an element with attributes and children.
  const element = (name, attributes = {}, ...children) => {
    const e = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) if (value) e.setAttribute(key, value);
    e.append(...children);
    return e;
  };
  const address = (kind, name) => `#${kind}=${encodeURIComponent(name).replaceAll('%2F', '/')}`;
  const link = (kind, name, label) => element('a', { href: address(kind, name), title: name === label ? '' : name }, label);
  const holders = (lines = []) => lines.map((l) => element('div', {}, l.pods || 'no pod', ' via ',
    l.claim ? link('claim', l.claim, l.label) : 'a device plugin', l.part ? `: ${l.part}` : ''));
  const fold = (summary, lines, more = {}) => element('details', more, element('summary', {}, summary), ...lines);
  const adminAccess = { class: 'dim', title: 'holders with admin access, which are not charged for the device' };
  const busy = ({ utilization: [text, ratio], trend }) => {
    if (trend) return [drawing(lines(trend)), ' ', text ?? ''];
    if (!text) return [];
    const bar = element('meter', { max: '100', 'aria-hidden': 'true' });
    bar.value = 100 * ratio;
    return [bar, ' ', text];
  };

  // drawing makes a small chart of polylines, with a line at a moment.
  const drawing = (lines, mark) => {
    const svg = (name, attributes) => {
      const e = document.createElementNS('http://www.w3.org/2000/svg', name);
      for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
      return e;
    };
    const out = svg('svg', { viewBox: '0 0 240 36', preserveAspectRatio: 'none', 'aria-hidden': 'true' });
    if (mark) out.append(svg('line', { x1: mark, x2: mark, y1: 0, y2: 36 }));
    out.append(...lines.map((points) => svg('polyline', { points })));
    return out;
  };

  // lines makes the polylines of a trend: a digit for each value, - where there is none.
  const lines = (trend) => [...trend.matchAll(/\d+/g)].map((part) => [...part[0]].map((digit, i) =>
    `${Math.round((part.index + i) * 240 / (trend.length - 1))},${34 - Math.round(32 * digit / 9)}`).join(' '));

  const marks = (of = []) => of.flatMap((m) => [' ', element('span', { class: m.class, title: m.what }, m.name)]);

  // A column has the content of a row's cell, and the text by which rows are sorted. Figures are a
  // text with the number by which rows are sorted, or nothing.
  const text = (of, name) => ({ text: of, make: (r) => [of(r)], name });
  const number = (of, name = 'n') => ({ text: (r) => of(r)[0], make: (r) => of(r).slice(0, 1), number: of, name });
  const deviceColumns = [
    { text: (r) => r.device, make: (r) => [link('device', r.id, r.device)] },
    {
      text: (r) => r.state, rank: (r) => r.order,
      make: (r) => [element('span', { class: r.class, title: r.why }, r.state),
        ...(r.quiet[0] ? [' ', element('small', {}, r.quiet[0])] : []),
        ...marks(r.marks)],
    },
    { ...number((r) => r.utilization), make: busy },
    number((r) => r.memory), number((r) => r.power), number((r) => r.temperature), number((r) => r.traffic),
    {
      text: (r) => (r.holders ?? []).map((h) => `${h.pods} ${h.claim}`).join(' '), name: 'w',
      make: (r) => [...(r.sharing ? [fold(r.sharing, holders(r.holders))] : holders(r.holders)),
        ...(r.admins ? [fold(`+${r.admins.length} admin`, holders(r.admins), adminAccess)] : [])],
    },
    {
      text: (r) => `${r.model} ${r.driver}`,
      make: (r) => [element('span', { class: r.model ? '' : 'dim', title: r.driver }, r.model || r.driver)],
    },
  ];
  const holderColumns = (kind) => [
    {
      text: (r) => `${r.name} ${r.stalled ? 'stalled' : ''}`,
      make: (r) => [link(kind, `${r.namespace}/${r.name}`, r.name), ...marks(r.stalled && [r.stalled])],
    },
    text((r) => r.namespace),
    { text: (r) => r.device, make: (r) => [link('device', r.id, r.device)] },
    number((r) => r.quiet, 'warn'),
    { ...number((r) => r.utilization), make: busy },
    number((r) => r.memory), number((r) => r.power), number((r) => r.traffic), number((r) => r.held),
    number((r) => r.active),
  ];

  const incidentColumns = [
    { text: () => '', make: (r) => (r.lines ? [drawing(r.lines, r.mark)] : []) },
    {
      text: (r) => r.state, rank: (r) => r.order,
      make: (r) => [element('span', { class: r.class, title: r.why }, r.state)],
    },
    { text: (r) => r.text, make: (r) => [link('incident', r.id, r.text)] },
    text((r) => r.since[0]), number((r) => r.for), number((r) => [String(r.count), r.count]), text((r) => r.last[0]),
    text((r) => r.hit, 'w'),
  ];

  const names = new Intl.Collator('en', { numeric: true });

  let words = [], state = '';
  // A Table shows its first rows until a person wants all: a limit keeps the tables near each other.
  class Table {
    constructor(id, columns, key, limit = Infinity) {
      this.section = $(id);
      this.body = this.section.querySelector('tbody');
      this.nothing = this.body.querySelector('td[colspan]')?.parentElement;
      Object.assign(this, { columns, key, limit, rows: new Map(), by: -1, up: false });
      this.body.replaceChildren();
      this.more = this.section.appendChild(element('button', { type: 'button', class: 'more', hidden: 'hidden' }));
      this.more.addEventListener('click', () => {
        this.limit = this.limit === limit ? Infinity : limit;
        this.arrange();
      });
      this.few = limit;
      this.heads = [...this.section.querySelectorAll('th')];
      this.heads.forEach((th, i) => {
        const button = element('button', { type: 'button' }, th.textContent);
        button.addEventListener('click', () => this.sortBy(i));
        th.replaceChildren(button);
      });
    }

    // sortBy sorts by a column, then the other way round, then as the exporter does.
    sortBy(i) {
      const first = !this.columns[i].number; // names rise, and numbers fall
      if (this.by !== i) Object.assign(this, { by: i, up: first });
      else if (this.up === first) this.up = !first;
      else this.by = -1;
      this.heads.forEach((th, j) => {
        if (j !== this.by) th.removeAttribute('aria-sort');
        else th.setAttribute('aria-sort', this.up ? 'ascending' : 'descending');
      });
      this.arrange();
    }

    show(rows) {
      const seen = new Set();
      rows.forEach((row, order) => {
        row.order = order;
        const key = this.key(row);
        seen.add(key);
        let known = this.rows.get(key);
        if (!known) {
          known = { tr: element('tr'), cells: [] };
          for (const c of this.columns) known.cells.push(known.tr.appendChild(element('td', { class: c.name })));
          this.rows.set(key, known);
        }
        this.fill(known, row);
      });
      for (const [key, { tr }] of this.rows) {
        if (seen.has(key)) continue;
        tr.remove();
        this.rows.delete(key);
      }
      this.arrange();
    }

    // fill changes the cells whose content has changed.
    fill(known, row) {
      const same = JSON.stringify(row);
      known.row = row;
      if (known.same === same) return;
      known.same = same;
      known.words = '';
      this.columns.forEach((column, i) => {
        const td = known.cells[i], content = column.make(row);
        known.words += ` ${column.text(row) ?? ''}`.toLowerCase();
        const now = content.map((c) => c.outerHTML ?? c).join('');
        if (td.shown === now) return;
        td.shown = now;
        const open = [...td.querySelectorAll('details')].map((d) => d.open);
        td.replaceChildren(...content);
        td.querySelectorAll('details').forEach((d, j) => { d.open = open[j] ?? false; });
      });
    }

    arrange() {
      const all = [...this.rows.values()], column = this.columns[this.by];
      const compare = (a, b) => {
        if (column?.rank) return column.rank(a) - column.rank(b);
        return column.number ? column.number(a)[1] - column.number(b)[1] :
          names.compare(column.text(a) ?? '', column.text(b) ?? '');
      };
      const sign = this.up ? 1 : -1;
      const lacks = (row) => Number(!column.rank && !column.text(row)); // absent values are last, either way
      all.sort((a, b) => (column ? lacks(a.row) - lacks(b.row) || sign * compare(a.row, b.row) : 0) ||
        a.row.order - b.row.order);
      const focused = document.activeElement;
      let found = 0, at = this.body.firstElementChild;
      for (const { tr, row, words: has } of all) {
        const fits = words.every((w) => has.includes(w)) && (state === '' || row.state === state || this === incidents);
        if (fits) found++;
        tr.hidden = !fits || found > this.limit;
        if (tr === at) at = at.nextElementSibling;
        else this.body.insertBefore(tr, at);
      }
      if (focused !== document.activeElement) focused.focus({ preventScroll: true });
      if (all.length === 0 && this.nothing) this.body.append(this.nothing);
      else this.nothing?.remove();
      this.section.querySelector('small').textContent = found === all.length ? found : `${found} of ${all.length}`;
      this.more.hidden = found <= this.few;
      this.more.textContent = found > this.limit ? `Show all ${found}` : `Show the first ${this.few}`;
    }
  }

  const devices = new Table('devices', deviceColumns, (r) => r.id);
  const key = (r) => `${r.namespace}/${r.name}/${r.id}`;
  const claims = new Table('claims', holderColumns('claim'), key, 25);
  const pods = new Table('pods', holderColumns('pod'), key, 25);
  const incidents = new Table('incidents', incidentColumns, (r) => r.id, 8);
  const tables = [incidents, devices, claims, pods];
  const arrange = () => tables.forEach((t) => t.arrange());

  const holderRows = (rows, of) => rows.map((
    [namespace, name, at, quiet, utilization, memory, power, traffic, held, active, trend]) => ({
    namespace, name, id: of.ids[at], device: of.ids[at].slice(of.ids[at].lastIndexOf('/') + 1),
    quiet, utilization, memory, power, traffic, held, active, trend, state: of.states.get(of.ids[at]),
    stalled: of.stalled.get(of.ids[at]),
  }));

  const showTiles = (tiles) => {
    if (state && !tiles.some((t) => t.state === state)) state = '';
    const focused = document.activeElement?.dataset.state;
    $('tiles').replaceChildren(...tiles.map((t) => {
      const tile = element('button', {
        type: 'button', class: `tile ${t.class}`, title: `${t.meaning}: show these alone`, 'data-state': t.state,
        'aria-pressed': String(t.state === state),
      }, element('b', {}, String(t.count)), t.state);
      tile.addEventListener('click', () => {
        state = state === t.state ? '' : t.state;
        showTiles(tiles);
        arrange();
      });
      return tile;
    }));
    if (focused) $('tiles').querySelector(`[data-state="${focused}"]`)?.focus();
  };

  // showNode shows what needs a look, the sums of the node, and who has access to everything.
  const showNode = (data) => {
    const short = (id) => id.slice(id.lastIndexOf('/') + 1);
    const between = (separator, all) => all.flatMap((one, i) => (i ? [separator, one] : [one]));
    $('wrong').replaceChildren(...data.wrong.map((f) => element('li', { class: f.class }, element('b', {}, f.text), ': ',
      ...between(', ', f.devices.map((id) => link('device', id, short(id)))), f.more ? ` and ${f.more} more` : '')));
    if (!data.wrong.length) $('wrong').append(element('li', { class: 'good' }, 'No device needs a look.'));
    $('sums').replaceChildren(...between(' · ', data.sums.map((f) => element('span', {}, `${f.name} `,
      element('b', {}, f.text)))));
    $('everywhere').replaceChildren(...(data.everywhere ?? []).map((l) => element('div', {},
      `Admin access to ${l.part} devices, not charged: ${l.pods || 'no pod'} via `,
      l.claim ? link('claim', l.claim, l.label) : 'a device plugin')));
  };

  const show = (data) => {
    showNode(data);
    data.states = new Map(data.devices.map((d) => [d.id, d.state]));
    data.stalled = new Map(data.devices.filter((d) => d.state === 'stalled')
      .map((d) => [d.id, { name: d.state, class: d.class, what: d.why }]));
    showTiles(data.tiles);
    devices.show(data.devices);
    claims.show(holderRows(data.claims, data));
    pods.show(holderRows(data.pods, data));
    $('troubles').replaceChildren(...data.troubles.map((t) => element('li', { class: 'bad' },
      `Source ${t.source} is down: ${t.reason}.`, t.do ? ` To do: ${t.do}.` : '')));
    $('incidents').hidden = !data.incidents;
    incidents.show(data.incidents ?? []);
    $('more').textContent = data.more ? `${data.more} more rows of claims and pods are not shown: the JSON has them.` : '';
    $('ended').textContent = data.ended ? `${data.ended} more rows of claims and pods that ended are still exported.` : '';
  };

  // The status says how old the rows are once the exporter does not answer.
  let latest = '', answered = Date.now(), trouble = '';
  const showStatus = () => {
    const seconds = Math.round((Date.now() - answered) / 1000);
    $('status').classList.toggle('stale', trouble !== '');
    $('status').textContent = trouble ? `Stale for ${seconds} s: ${trouble}.` : `As of ${latest}.`;
  };

  const refresh = async () => {
    try {
      const response = await fetch('page/rows', { signal: AbortSignal.timeout(4 * every) });
      if (!response.ok) throw new Error(`status ${response.status}`);
      const data = await response.json();
      if (data.time !== latest) show(data);
      latest = data.time;
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
  const dialog = $('detail'), inside = dialog.querySelector('div');
  let shown = '';
  const asked = () => {
    const found = /^#(claim|pod|device|incident)=(.+)$/.exec(location.hash);
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
      if (dialog.open) dialog.close();
      shown = '';
      return;
    }
    if (shown === query && getSelection().toString() && inside.contains(getSelection().anchorNode)) return;
    const response = await fetch(`page/detail?${query}`);
    const main = new DOMParser().parseFromString(await response.text(), 'text/html').querySelector('main');
    if (queryOf(asked()) !== query) return; // another address since: its details are asked for
    for (const a of main?.querySelectorAll('a[href^="?"]') ?? []) {
      const [kind, name] = [...new URLSearchParams(a.getAttribute('href'))][0];
      a.setAttribute('href', address(kind, name));
    }
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
  dialog.addEventListener('close', () => {
    if (dialog.open) return;
    if (shown && queryOf(asked()) === shown) history.replaceState(null, '', location.pathname + location.search);
    shown = '';
  });
  dialog.addEventListener('click', (e) => { if (e.target === dialog) dialog.close(); });

  const filter = $('filter');
  filter.addEventListener('input', () => {
    words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    arrange();
  });
  addEventListener('keydown', (e) => {
    if (dialog.open || e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key === 'Escape') {
      filter.value = state = '';
      words = [];
      filter.blur();
      document.querySelectorAll('.tile').forEach((t) => t.setAttribute('aria-pressed', 'false'));
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
  $('controls').hidden = false;
  setInterval(() => { if (trouble) showStatus(); }, 1000);
  run();
})();
