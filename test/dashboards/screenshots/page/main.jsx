// Draws panels of the dashboards, given as window.drawn, with Grafana's own components. Grafana's
// layout and transformations are imitated, so the pictures are only illustrations.
import React from 'react';
import 'uplot/dist/uPlot.min.css';
import { createRoot } from 'react-dom/client';
import { createTheme, dateTime, FieldType, formattedValueToString, getDisplayProcessor, getFieldDisplayName, ThemeContext, toDataFrame } from '@grafana/data';
import { BarGauge, BarGaugeDisplayMode, BigValue, BigValueColorMode, BigValueGraphMode, LegendDisplayMode, TimeSeries } from '@grafana/ui';

const theme = createTheme({ colors: { mode: 'dark' } });
const cell = 50; // pixels of a column of the grid of 24; a row has 36

// Grafana writes the first threshold as null.
function config(panel) {
  const defaults = structuredClone(panel.fieldConfig.defaults);
  defaults.thresholds.steps[0].value = -Infinity;
  return defaults;
}

const processor = (c, values, name = '') => getDisplayProcessor({ field: { name, type: FieldType.number, config: c, values, state: { displayName: name } }, theme });

const legend = (target, labels) => (target.legendFormat || '').replace(/\{\{\s*(\w+)\s*\}\}/g, (_, name) => labels[name] ?? '');

function Stat({ panel, answers, width, height }) {
  const values = (answers[0] || []).flatMap((s) => (s.values ? s.values.map((v) => +v[1]) : [+s.value[1]]));
  const c = config(panel);
  const value = values.length ? processor(c, values)(values[values.length - 1]) : { text: c.noValue, numeric: NaN };
  return <BigValue width={width} height={height} theme={theme} value={value} colorMode={BigValueColorMode.Value} graphMode={BigValueGraphMode.None} />;
}

function Graph({ panel, answers, width, height }) {
  const c = config(panel);
  const frames = answers.flatMap((series, i) => series.map((s) => frame(panel, c, legend(panel.targets[i], s.metric), s)));
  frames.forEach((f, i) => finish(f.fields[1], f, i));
  const times = frames.flatMap((f) => f.fields[0].values);
  const from = dateTime(Math.min(...times)), to = dateTime(Math.max(...times));
  return <TimeSeries frames={frames} width={width} height={height} timeZone="utc" theme={theme} structureRev={1}
    timeRange={{ from, to, raw: { from, to } }} legend={{ showLegend: true, displayMode: LegendDisplayMode.List, placement: 'bottom', calcs: [] }}
    options={{}} />;
}

function frame(panel, defaults, name, series) {
  const values = series.values.map((v) => +v[1]);
  const own = panel.fieldConfig.overrides.filter((o) => o.matcher.options === name).flatMap((o) => o.properties);
  const c = { ...defaults, ...Object.fromEntries(own.map((p) => [p.id, p.value])) };
  const f = toDataFrame({
    name,
    fields: [
      { name: 'time', type: FieldType.time, values: series.values.map((v) => v[0] * 1000), config: {} },
      { name, type: FieldType.number, values, config: { ...c, displayName: name, custom: { ...panel.fieldConfig.defaults.custom, showPoints: 'never' } } },
    ],
  });
  f.fields[0].display = (v) => ({ text: dateTime(v).utc().format('HH:mm'), numeric: v });
  return f;
}

// finish sets the properties of a field that depend on its index: the color of the palette.
function finish(field, frame, seriesIndex) {
  field.state = { displayName: getFieldDisplayName(field, frame), seriesIndex };
  field.display = getDisplayProcessor({ field, theme });
}

function Bars({ panel, answers, width, height }) {
  const c = config(panel);
  const bars = (answers[0] || []).map((s) => ({ name: legend(panel.targets[0], s.metric), value: +s.value[1] }));
  bars.sort((a, b) => b.value - a.value);
  const max = c.max ?? Math.max(...bars.map((b) => b.value));
  const field = { ...c, min: 0, max };
  const display = processor(field, bars.map((b) => b.value));
  const each = Math.min(44, height / Math.max(1, bars.length));
  const longest = (texts) => texts.reduce((a, b) => (b.length > a.length ? b : a), '');
  const widths = { title: `${longest(bars.map((b) => b.name))}__`, text: longest(bars.map((b) => formattedValueToString(display(b.value)))) };
  return bars.length ? bars.map((b) => <BarGauge key={b.name} value={{ ...display(b.value), title: b.name }} alignmentFactors={widths} field={field} display={display} width={width} height={each - 4}
    orientation="horizontal" displayMode={BarGaugeDisplayMode.Basic} theme={theme} itemSpacing={4} />) : c.noValue;
}

// Table joins the rows of all queries by their labels, and names and orders columns like the panel's
// transformations.
function Table({ panel, answers }) {
  const names = panel.transformations.find((t) => t.id === 'organize').options.renameByName;
  const rows = new Map();
  answers.forEach((series, i) => series.forEach((s) => {
    const { __name__, instance, job, cluster, node, ...labels } = s.metric;
    const key = JSON.stringify(Object.entries(labels).sort());
    const row = rows.get(key) ?? { labels, values: {} };
    row.values[answers.length === 1 ? 'Value' : 'Value #' + String.fromCharCode(65 + i)] = +s.value[1];
    rows.set(key, row);
  }));
  const labels = [...new Set([...rows.values()].flatMap((r) => Object.keys(r.labels)))];
  const values = Object.keys(names).filter((n) => n.startsWith('Value')).sort();
  const units = Object.fromEntries(panel.fieldConfig.overrides.map((o) => [o.matcher.options, o.properties.find((p) => p.id === 'unit')?.value]));
  const text = (column, v) => {
    if (v === undefined) return '';
    const d = processor({ unit: units[names[column]] }, [v])(v);
    return (d.prefix ?? '') + d.text + (d.suffix ?? '');
  };
  const sorted = [...rows.values()].sort((a, b) => (b.values[values[0]] ?? 0) - (a.values[values[0]] ?? 0));
  return <table><thead><tr>{labels.map((l) => <th key={l}>{names[l] ?? l}</th>)}{values.map((v) => <th key={v}>{names[v]}</th>)}</tr></thead>
    <tbody>{sorted.map((r, i) => <tr key={i}>{labels.map((l) => <td key={l} className={l === 'resourceclaim_name' ? 'link' : ''}>{r.labels[l]}</td>)}
      {values.map((v) => <td key={v} className="number">{text(v, r.values[v])}</td>)}</tr>)}</tbody></table>;
}

const kinds = { stat: Stat, timeseries: Graph, bargauge: Bars, table: Table };

function Panel({ drawing }) {
  const { panel, answers } = drawing;
  const width = panel.gridPos.w * cell - 8, height = panel.gridPos.h * 34;
  const Kind = kinds[panel.type];
  return <div className="panel" style={{ width, height }}><h2>{panel.title}</h2>
    <div className="body"><Kind panel={panel} answers={answers} width={width - 16} height={height - 38} /></div></div>;
}

createRoot(document.getElementById('root')).render(
  <ThemeContext.Provider value={theme}><h1>{window.drawn.title}</h1>
    <div className="grid">{window.drawn.drawings.map((d) => <Panel key={d.panel.id} drawing={d} />)}</div>
    <p>Simulated devices of make run, scraped by a real Prometheus. The panels' own queries and settings, drawn with Grafana's components outside Grafana.</p>
  </ThemeContext.Provider>
);
