// Heat maps and state timelines: rows of colored cells over time, in Grafana's plot.
import { FieldType, formattedValueToString, getFieldDisplayName, getValueFormat } from '@grafana/data';
import { AxisPlacement, LegendDisplayMode, ScaleDirection, ScaleOrientation } from '@grafana/schema';
import { UPlotChart, UPlotConfigBuilder, VizLayout, VizLegend } from '@grafana/ui';
import * as schemes from 'd3-scale-chromatic';
import { mark } from './data.js';

// plot returns the configuration of a plot whose axes are the time and the rows, from the lowest up.
// paint is called with the canvas, and with the pixels of a time and of a row's edge.
function plot({ rows, range, theme, paint, axisWidth }) {
  const builder = new UPlotConfigBuilder('utc');
  builder.addScale({
    scaleKey: 'x',
    isTime: true,
    orientation: ScaleOrientation.Horizontal,
    direction: ScaleDirection.Right,
    range: [range.from, range.to],
  });
  builder.addScale({
    scaleKey: 'rows',
    isTime: false,
    orientation: ScaleOrientation.Vertical,
    direction: ScaleDirection.Up,
    range: [0, rows.length],
  });
  builder.addAxis({
    scaleKey: 'x',
    isTime: true,
    placement: AxisPlacement.Bottom,
    timeZone: 'utc',
    theme,
    grid: { show: false },
  });
  builder.addAxis({
    scaleKey: 'rows',
    placement: AxisPlacement.Left,
    size: axisWidth,
    theme,
    grid: { show: false },
    ticks: { show: false },
    splits: (u) => {
      const each = Math.ceil(14 / (u.bbox.height / devicePixelRatio / rows.length)); // rows by label that can be read
      return rows.map((_, i) => i + 0.5).filter((_, i) => i % each === 0);
    },
    values: (_, splits) => splits.map((v) => rows[v - 0.5]),
  });
  builder.addSeries({
    scaleKey: 'rows',
    pathBuilder: () => null,
    pointsBuilder: () => null,
    show: true,
    theme,
    lineColor: 'transparent',
  });
  builder.addHook('draw', (u) => {
    u.ctx.save();
    u.ctx.beginPath();
    u.ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
    u.ctx.clip();
    paint(
      u.ctx,
      (ms) => u.valToPos(ms, 'x', true),
      (edge) => u.valToPos(edge, 'rows', true),
    );
    u.ctx.restore();
  });
  return builder;
}

const Plot = ({ times, width, height, legend, config }) => (
  <VizLayout width={width} height={height} legend={legend}>
    {(w, h) => <UPlotChart config={config} data={[times, times.map(() => null)]} width={w} height={h} />}
  </VizLayout>
);

const numbers = (frame) => frame.fields.filter((f) => f.type === FieldType.number);

// Heatmap colors cells by their counts, on the panel's exponential scale. A dark theme turns the
// scheme around.
export function Heatmap({ panel, data, range, width, height, theme }) {
  const { color, cellGap } = panel.options;
  const [frame] = data,
    fields = numbers(frame),
    times = frame.fields[0].values;
  const step = times.length > 1 ? times[1] - times[0] : range.to - range.from;
  const most = Math.max(...fields.flatMap((f) => f.values)) || 1;
  const scheme = schemes[`interpolate${color.scheme}`];
  const shade = (v) => scheme(1 - Math.round((v / most) ** color.exponent * (color.steps - 1)) / (color.steps - 1));
  const format = getValueFormat(panel.options.yAxis.unit);
  const rows = fields.map((f) => formattedValueToString(format(+f.name)));
  const config = plot({
    rows,
    range,
    theme,
    paint: (canvas, x, y) =>
      fields.forEach((f, i) =>
        f.values.forEach((v, t) => {
          if (!v) return;
          canvas.fillStyle = shade(v);
          canvas.fillRect(
            x(times[t] - step),
            y(i + 1),
            x(times[t]) - x(times[t] - step) - cellGap,
            y(i) - y(i + 1) - cellGap,
          );
        }),
      ),
  });
  const gradient = Array.from({ length: 16 }, (_, i) => shade((i / 15) * most)).join(', ');
  return (
    <Plot
      times={times}
      width={width}
      height={height}
      config={config}
      legend={
        <VizLayout.Legend placement="bottom">
          <div className="scale">
            0<i style={{ background: `linear-gradient(to right, ${gradient})` }} />
            {formattedValueToString(getValueFormat(panel.options.cellValues.unit)(most))}
          </div>
        </VizLayout.Legend>
      }
    />
  );
}

// Timeline colors the times in which a row has the same value, merged.
export function Timeline({ panel, data, range, marks, width, height, theme }) {
  const series = data
    .flatMap((frame) =>
      frame.fields
        .filter((field) => field.type === FieldType.number || field.type === FieldType.string)
        .map((field) => ({ times: frame.fields[0].values, field, name: getFieldDisplayName(field, frame) })),
    )
    .reverse();
  const config = plot({
    rows: series.map((s) => s.name),
    range,
    theme,
    axisWidth: panel.fieldConfig.defaults.custom.axisWidth,
    paint: (canvas, x, y) =>
      series.forEach(({ times, field }, i) => {
        const tall = (y(i) - y(i + 1)) * panel.options.rowHeight,
          top = (y(i) + y(i + 1) - tall) / 2;
        const step = Math.min(...times.slice(1).map((t, n) => t - times[n])) || range.to - range.from;
        for (let first = 0, n = 1; n <= times.length; n++) {
          const last = times[n - 1],
            goes = n < times.length && times[n] - last < 1.5 * step;
          if (goes && field.values[n] === field.values[first]) continue;
          const { text, color } = field.display(field.values[first] ?? ''),
            left = x(times[first]),
            wide = x(goes ? times[n] : last + step) - left;
          first = n;
          if (field.values[n - 1] == null) continue;
          canvas.fillStyle = color;
          canvas.globalAlpha = color === '#00000000' ? 0 : (field.config.custom?.fillOpacity ?? 70) / 100;
          canvas.fillRect(left, top, wide, tall);
          if (panel.options.showValue !== 'auto' || tall < 12 * devicePixelRatio) continue;
          canvas.globalAlpha = 1;
          canvas.font = `${12 * devicePixelRatio}px Inter, Helvetica, Arial, sans-serif`;
          if (canvas.measureText(text).width > wide) continue;
          [canvas.textBaseline, canvas.textAlign] = ['middle', 'left'];
          canvas.fillStyle = theme.colors.text.primary;
          canvas.fillText(text, Math.max(left, x(range.from)) + 4, top + tall / 2);
        }
      }),
  });
  mark(config, marks);
  const states = Object.values(panel.fieldConfig.defaults.mappings?.[0]?.options ?? {}).sort(
    (a, b) => a.index - b.index,
  );
  const items = states.map((s) => ({ label: s.text, color: theme.visualization.getColorByName(s.color), yAxis: 1 }));
  return (
    <Plot
      times={series[0].times}
      width={width}
      height={height}
      config={config}
      legend={
        panel.options.legend.showLegend && <VizLayout.Legend placement="bottom">
          <VizLegend placement="bottom" displayMode={LegendDisplayMode.List} items={items} />
        </VizLayout.Legend>
      }
    />
  );
}
