// Charts of points: squares or circles in Grafana's plot, as its XY chart draws them.
import { formattedValueToString } from '@grafana/data';
import { AxisPlacement, ScaleDirection, ScaleOrientation } from '@grafana/schema';
import { UPlotChart, UPlotConfigBuilder, VizLayout } from '@grafana/ui';

// sizes are the diameters of points: their areas are in proportion to the values between the least
// and the largest.
function sizes(field, { fixed, min, max }, length) {
  if (!field) return Array(length).fill(fixed);
  const known = field.values.filter((v) => v != null),
    least = Math.min(...known),
    most = Math.max(...known);
  return field.values.map((v) => Math.sqrt(min ** 2 + ((v - least) / (most - least)) * (max ** 2 - min ** 2)));
}

export function Points({ panel, data, width, height, theme }) {
  const [series] = panel.options.series,
    [frame] = data;
  const named = (of) => of && frame.fields.find((f) => (f.state?.displayName ?? f.name) === of.matcher.options);
  const x = named(series.x),
    y = named(series.y),
    color = named(series.color),
    size = named(series.size);
  const { pointSize, pointShape, fillOpacity, axisPlacement } = panel.fieldConfig.defaults.custom;
  const diameters = sizes(size, pointSize, frame.length);
  const builder = new UPlotConfigBuilder('utc');
  builder.setMode(2);
  for (const [scaleKey, field, orientation, direction] of [
    ['x', x, ScaleOrientation.Horizontal, ScaleDirection.Right],
    ['y', y, ScaleOrientation.Vertical, ScaleDirection.Up],
  ]) {
    builder.addScale({
      scaleKey, orientation, direction, isTime: false, auto: true, min: field.config.min, max: field.config.max,
      softMin: field.config.custom?.axisSoftMin, softMax: field.config.custom?.axisSoftMax,
    });
    builder.addAxis({
      scaleKey, theme, show: axisPlacement !== AxisPlacement.Hidden, label: field.state?.displayName ?? field.name,
      placement: scaleKey === 'x' ? AxisPlacement.Bottom : AxisPlacement.Left,
      formatValue: (v, decimals) => formattedValueToString(field.display(v, decimals)),
    });
  }
  builder.addSeries({
    facets: [{ scale: 'x', auto: true }, { scale: 'y', auto: true }],
    scaleKey: '', theme, lineColor: '#ffff', fillColor: '#ffff', show: true,
    pathBuilder: (u) => {
      const ratio = devicePixelRatio,
        { ctx } = u;
      ctx.save();
      x.values.forEach((at, i) => {
        const fill = color.display(color.values[i]).color;
        if (fill === 'transparent' || fill.endsWith('00')) return;
        const cx = u.valToPos(at, 'x', true),
          cy = u.valToPos(y.values[i], 'y', true),
          d = Math.round(diameters[i] * ratio);
        ctx.globalAlpha = fillOpacity / 100;
        ctx.fillStyle = fill;
        ctx.beginPath();
        if (pointShape === 'square') ctx.rect(Math.round(cx - d / 2), Math.round(cy - d / 2), d, d);
        else ctx.arc(cx, cy, d / 2, 0, 2 * Math.PI);
        ctx.fill();
      });
      ctx.restore();
      return null;
    },
  });
  return (
    <VizLayout width={width} height={height}>
      {(w, h) => <UPlotChart config={builder} data={[null, [x.values, y.values]]} width={w} height={h} />}
    </VizLayout>
  );
}
