// Panels that Grafana's package has components for, used as Grafana's panels use them.
import {
  dateTime,
  FieldType,
  getFieldDisplayValues,
  VizOrientation,
} from '@grafana/data';
import { BigValue, TimeSeries, VizRepeater } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';
import { mark } from './data.js';

const reduced = ({ panel, data, theme }, sparkline) =>
  getFieldDisplayValues({
    fieldConfig: panel.fieldConfig,
    reduceOptions: panel.options.reduceOptions,
    replaceVariables: (s) => s,
    theme,
    data,
    sparkline,
    timeZone: 'utc',
  });

export function Stat(props) {
  const { panel, width, height, theme } = props;
  return (
    <VizRepeater
      source={props.data}
      renderCounter={1}
      width={width}
      height={height}
      itemSpacing={3}
      orientation={VizOrientation.Auto}
      autoGrid
      getValues={() => reduced(props, panel.options.graphMode !== 'none')}
      renderValue={({ value, width: w, height: h, count }) => (
        <BigValue
          width={w}
          height={h}
          theme={theme}
          count={count}
          hasLinks={value.hasLinks}
          value={count === 1 ? { ...value.display, title: undefined } : value.display}
          sparkline={value.sparkline}
          colorMode={panel.options.colorMode}
          graphMode={panel.options.graphMode}
        />
      )}
    />
  );
}

export function Graph({ panel, data, range, marks, width, height }) {
  const from = dateTime(range.from),
    to = dateTime(range.to);
  return (
    <TimeSeries
      frames={data}
      width={width}
      height={height}
      timeZone="utc"
      structureRev={1}
      timeRange={{ from, to, raw: { from, to } }}
      legend={panel.options.legend}
      options={{}}
    >
      {(builder) => mark(builder, marks)}
    </TimeSeries>
  );
}

export function TableOf({ panel, data, width, height }) {
  const visible = {
    ...data[0],
    fields: data[0].fields.filter((f) => f.type !== FieldType.time || f.name !== 'Time'),
  };
  return (
    <TableNG
      data={visible}
      width={width}
      height={height}
      cellHeight={panel.options.cellHeight}
      fieldConfig={panel.fieldConfig}
      enableVirtualization={false}
    />
  );
}
