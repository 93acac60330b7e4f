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
    if (target.format === 'heatmap') return series.length ? [buckets(series)] : [];
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

// buckets has a field for each bucket of a histogram, in their order, which counts what is in that
// bucket alone.
function buckets(series) {
  const sorted = [...series].sort((a, b) => bound(a) - bound(b));
  const times = [...new Set(sorted.flatMap((s) => s.values.map(([t]) => t)))].sort((a, b) => a - b);
  const cumulative = sorted.map((s) => {
    const at = new Map(s.values.map(([t, v]) => [t, +v]));
    return times.map((t) => at.get(t) ?? null);
  });
  return toDataFrame({
    fields: [
      { name: 'Time', type: FieldType.time, values: times.map((t) => t * 1000) },
      ...sorted.map((s, i) => ({
        name: s.metric.le,
        type: FieldType.number,
        values: cumulative[i].map((v, t) => (v === null || i === 0 ? v : v - cumulative[i - 1][t])),
      })),
    ],
  });
}

const bound = (s) => (s.metric.le === '+Inf' ? Infinity : +s.metric.le);

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
  'axisSoftMax',
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
  const { mergeTransformer, sortByTransformer, organizeFieldsTransformer, limitTransformer } = standardTransformers;
  standardTransformersRegistry.setInit(() =>
    [mergeTransformer, sortByTransformer, organizeFieldsTransformer, limitTransformer].map((t) => ({
      id: t.id,
      name: t.name,
      defaultOptions: t.defaultOptions,
      transformation: async () => t,
      editor: () => null,
    })),
  );
}
