// Draws a dashboard with Grafana's own components: its JSON, and the answers of its panels' queries,
// which /boards/UID has. What npm has no component for is built here as Grafana builds it: the
// layout, and from its plot the heat maps and the state timelines.
import React from 'react';
import 'uplot/dist/uPlot.min.css';
import { createRoot } from 'react-dom/client';
import { lastValueFrom } from 'rxjs';
import { createTheme, FieldType, ThemeContext, transformDataFrame } from '@grafana/data';
import { GlobalStyles, PanelChrome } from '@grafana/ui';
import { frames, marks, overridden, registerTransformers } from './data.js';
import { Graph, Stat, TableOf } from './panels.jsx';
import { Heatmap, Timeline } from './cells.jsx';
import { Points } from './points.jsx';

const kinds = {
  stat: Stat,
  timeseries: Graph,
  table: TableOf,
  heatmap: Heatmap,
  'state-timeline': Timeline,
  xychart: Points,
};

// Grafana's grid: 24 columns, and rows of 30 pixels; 8 pixels between panels. On narrow screens each
// panel has the whole width.
const columns = 24,
  row = 30,
  gap = 8,
  narrow = 769;
const tall = (h) => h * (row + gap) - gap;

function place({ x, y, w, h }, width) {
  const column = (width + gap) / columns;
  return { left: x * column, top: y * (row + gap), width: w * column - gap, height: tall(h) };
}

// stack returns the places of panels one below the other.
function stack(panels, width) {
  let top = 0;
  return panels.map((p) => {
    const at = { left: 0, top, width, height: tall(p.gridPos.h) };
    top += at.height + gap;
    return at;
  });
}

function Panel({ panel, data, range, marked, at, theme }) {
  const style = { position: 'absolute', ...at };
  if (panel.type === 'row') return <h2 style={style}>{panel.collapsed ? '▸' : '▾'} {panel.title}</h2>;
  const Kind = kinds[panel.type];
  const empty = data.every((f) =>
    f.fields.every((field) => field.type === FieldType.time || field.values.length === 0),
  );
  return (
    <div style={style}>
      <PanelChrome
        title={panel.title}
        description={panel.description}
        width={at.width}
        height={at.height}
        padding={panel.type === 'table' ? 'none' : 'md'}
      >
        {(width, height) =>
          empty ? (
            <p className="empty" style={{ width, height }}>
              {panel.fieldConfig.defaults.noValue}
            </p>
          ) : (
            <Kind panel={panel} data={data} range={range} marks={marked} width={width} height={height} theme={theme} />
          )
        }
      </PanelChrome>
    </div>
  );
}

function Board({ dashboard, drawn, range, marked, chosen, theme }) {
  const width = document.documentElement.clientWidth - 4 * gap;
  const places =
    width < narrow ? stack(dashboard.panels, width) : dashboard.panels.map((p) => place(p.gridPos, width));
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <h1>{dashboard.title}</h1>
      <nav>
        {dashboard.templating.list
          .filter((v) => !v.hide)
          .map((v) => (
            <span key={v.name}>
              <label>{v.label}</label>
              {v.type === 'textbox' ? '' : (chosen?.[v.name] ?? v.current?.text ?? 'Prometheus')}
            </span>
          ))}
      </nav>
      <main style={{ height: Math.max(...places.map((at) => at.top + at.height)) }}>
        {dashboard.panels.map((p, i) => (
          <Panel key={p.id} panel={p} data={drawn[i]} range={range} marked={marked} at={places[i]} theme={theme} />
        ))}
      </main>
      <footer>
        Simulated devices of make run, scraped by a real Prometheus; drawn with Grafana's components, outside Grafana.
      </footer>
    </ThemeContext.Provider>
  );
}

// React removes all of a page when one of its components throws.
let failure;
window.addEventListener('error', (event) => (failure = event.error));

const root = createRoot(document.getElementById('root'));
registerTransformers();

// draw draws a dashboard for the present width of the window, dark or light, and returns its height.
window.draw = async (uid, mode) => {
  const theme = createTheme({ colors: { mode } });
  document.body.style.background = theme.colors.background.canvas;
  document.body.style.color = theme.colors.text.primary;
  const { dashboard, answers, marks: times, from, to, chosen } = await (await fetch(`/boards/${uid}`)).json();
  const range = { from, to },
    marked = marks(dashboard.annotations.list ?? [], times ?? [], theme);
  const drawn = await Promise.all(
    dashboard.panels.map(async (panel) => {
      const transformed = transformDataFrame(
        panel.transformations ?? [],
        frames(panel, answers[panel.id] ?? [], range),
        { interpolate: (s) => s },
      );
      return overridden(panel, await lastValueFrom(transformed), theme);
    }),
  );
  root.render(<Board key={uid + mode + window.innerWidth} dashboard={dashboard} drawn={drawn} range={range} marked={marked} chosen={chosen} theme={theme} />);
  return settled();
};

// settled waits for plots, which are drawn after React's first effects, and for tables, which are
// drawn again after their columns are measured. It returns the height of the page.
const settled = (window.settled = async () => {
  await document.fonts.ready;
  for (let frame = 0; frame < 5; frame++) await new Promise(requestAnimationFrame);
  if (failure || !document.querySelector('main')) throw failure ?? new Error('nothing is drawn');
  return document.documentElement.scrollHeight;
});
