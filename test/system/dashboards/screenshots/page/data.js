// What Grafana's data source, transformations and field options make of the answers of queries.
import {
  applyFieldOverrides,
  cacheFieldDisplayNames,
  FieldConfigOptionsRegistry,
  FieldType,
  standardTransformers,
  standardTransformersRegistry,
  toDataFrame,
} from '@grafana/data';

const labelled = (target, labels) =>
  (target.legendFormat || '').replace(/\{\{\s*(\w+)\s*\}\}/g, (_, name) => labels[name] ?? '');

// frames are the data frames of the answers of a panel's queries.
export function frames(panel, answers, range) {
  return answers.flatMap((series, i) => {
    const target = panel.targets[i];
    if (target.format === 'table')
      return series.length ? [table(target.refId, answers.length, series, range.to)] : [];
    if (panel.type === 'heatmap') return series.length ? [series[0].histograms ? native(series[0]) : bands(target, series)] : [];
    return series.map((s) => timed(target, s));
  });
}

// points are the [seconds, text] pairs of a series, of which an instant query has one.
const points = (s) => s.values ?? [s.value];

function timed(target, s) {
  return toDataFrame({
    refId: target.refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: points(s).map(([t]) => t * 1000) },
      {
        name: 'Value',
        type: FieldType.number,
        labels: s.metric,
        values: points(s).map(([, v]) => +v),
        config: { displayNameFromDS: labelled(target, s.metric) },
      },
    ],
  });
}

// table has a column for each label, and one for the value.
function table(refId, of, series, at) {
  const labels = [...new Set(series.flatMap((s) => Object.keys(s.metric)))].sort();
  return toDataFrame({
    refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: series.map(() => at) },
      ...labels.map((name) => ({ name, type: FieldType.string, values: series.map((s) => s.metric[name] ?? '') })),
      {
        name: of === 1 ? 'Value' : `Value #${refId}`,
        type: FieldType.number,
        values: series.map((s) => +s.value[1]),
      },
    ],
  });
}

// rows is a frame with a field for each row of a heat map, from the lowest up; at are the values of
// the row by the time in seconds. The name of a row is its upper bound.
function rows(all) {
  const times = [...new Set(all.flatMap(({ at }) => [...at.keys()]))].sort((a, b) => a - b);
  return toDataFrame({
    fields: [
      { name: 'Time', type: FieldType.time, values: times.map((t) => t * 1000) },
      ...all.map(({ name, at }) => ({
        name: String(name),
        type: FieldType.number,
        values: times.map((t) => at.get(t) ?? null),
      })),
    ],
  });
}

// bands has a row for each series, whose legend is the upper bound.
const bands = (target, series) =>
  rows(
    series
      .map((s) => ({ name: +labelled(target, s.metric), at: new Map(s.values.map(([t, v]) => [t, +v])) }))
      .sort((a, b) => a.name - b.name),
  );

// native has a row for each bucket of a native histogram, whose values are nowhere negative: the zero
// bucket, and from the lowest bucket that counts something to the highest, all of one ratio.
function native(series) {
  const counts = new Map(), // the counts of a bucket by time, by its upper bound
    exact = (bound) => Number(bound.toPrecision(9));
  let ratio = 2;
  for (const [t, { buckets }] of series.histograms)
    for (const [, low, high, count] of buckets ?? []) {
      const bound = exact(+high);
      if (+low > 0) ratio = high / low;
      if (!counts.has(bound)) counts.set(bound, { name: bound, zero: +low <= 0, at: new Map() });
      counts.get(bound).at.set(t, +count);
    }
  const known = [...counts.values()].sort((a, b) => a.name - b.name),
    out = known.filter((row) => row.zero),
    others = known.filter((row) => !row.zero);
  for (const row of others) {
    for (let last = out.at(-1); last && !last.zero && row.name > last.name * ratio * 1.01; last = out.at(-1))
      out.push({ name: exact(last.name * ratio), at: new Map() });
    out.push(row);
  }
  // Without observations there are times, and no rows.
  return out.length ? rows(out) : toDataFrame({ fields: [] });
}

// The options of fields that the dashboards use. Those of a kind of panel are custom.
const options = [
  'unit',
  'min',
  'max',
  'decimals',
  'displayName',
  'noValue',
  'thresholds',
  'mappings',
  'links',
  'color',
].map(option);
const custom = [
  'cellOptions',
  'align',
  'width',
  'minWidth',
  'filterable',
  'inspect',
  'drawStyle',
  'lineWidth',
  'fillOpacity',
  'gradientMode',
  'showPoints',
  'spanNulls',
  'stacking',
  'thresholdsStyle',
  'axisPlacement',
  'axisSoftMin',
  'axisSoftMax',
  'axisWidth',
  'barMaxWidth',
  'pointSize',
  'insertNulls',
  'scaleDistribution',
].map((name) => ({ ...option(name), id: `custom.${name}`, isCustom: true }));

function option(name) {
  return {
    id: name,
    path: name,
    name,
    override: () => null,
    editor: () => null,
    process: (v) => v,
    shouldApply: () => true,
    settings: {},
  };
}

const fieldConfigRegistry = new FieldConfigOptionsRegistry(() => [...options, ...custom]);

// overridden are the frames with the panel's field options, links and texts of values.
export function overridden(panel, data, theme) {
  const out = applyFieldOverrides({
    data,
    fieldConfig: panel.fieldConfig,
    fieldConfigRegistry,
    theme,
    timeZone: 'utc',
    replaceVariables: (s) => s,
  });
  cacheFieldDisplayNames(out);
  return out;
}

export function registerTransformers() {
  const { mergeTransformer, sortByTransformer, organizeFieldsTransformer, limitTransformer, filterByValueTransformer } =
    standardTransformers;
  const { calculateFieldTransformer, convertFieldTypeTransformer, labelsToFieldsTransformer, groupingToMatrixTransformer } =
    standardTransformers;
  standardTransformersRegistry.setInit(() =>
    [
      mergeTransformer, sortByTransformer, organizeFieldsTransformer, limitTransformer, calculateFieldTransformer,
      convertFieldTypeTransformer, labelsToFieldsTransformer, groupingToMatrixTransformer, filterByValueTransformer,
    ].map((t) => ({
      id: t.id,
      name: t.name,
      defaultOptions: t.defaultOptions,
      transformation: async () => t,
      editor: () => null,
    })),
  );
}

// marks are the times in milliseconds that the annotations mark, from the results of their queries:
// points whose values are times, or spans in which there are values.
export const marks = (annotations, answers, theme) =>
  annotations.flatMap(({ iconColor, useValueForTime }, i) => {
    const color = theme.visualization.getColorByName(iconColor);
    return (answers[i] ?? []).flatMap(({ values }) =>
      useValueForTime
        ? [...new Set(values.map(([, v]) => +v))].map((at) => ({ from: at, to: at, color }))
        : [{ from: values[0][0] * 1000, to: values.at(-1)[0] * 1000, color }],
    );
  });

const marked = new WeakSet();

// mark draws marks over a plot as Grafana does: dashed lines, and shades between them.
export function mark(builder, all) {
  if (marked.has(builder)) return;
  marked.add(builder);
  builder.addHook('draw', (u) => {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.setLineDash([5, 5]);
    ctx.lineWidth = 2;
    for (const { from, to, color } of all) {
      const left = u.valToPos(from, 'x', true),
        right = u.valToPos(to, 'x', true);
      [ctx.fillStyle, ctx.strokeStyle, ctx.globalAlpha] = [color, color, 0.1];
      ctx.fillRect(left, bbox.top, right - left, bbox.height);
      ctx.globalAlpha = 1;
      for (const at of from === to ? [left] : [left, right]) {
        ctx.beginPath();
        ctx.moveTo(at, bbox.top);
        ctx.lineTo(at, bbox.top + bbox.height);
        ctx.stroke();
      }
    }
    ctx.restore();
  });
}
