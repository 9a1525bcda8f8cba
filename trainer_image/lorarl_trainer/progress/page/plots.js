// How uPlot draws a chart. A line is {label, x, y, colour, dash, points, low, high, stack, faint}: x and y are arrays,
// low and high the ends of error bars. A chart is {lines, options, show}; it may get new lines while it is on screen.

const CHART_HEIGHT = 220;
const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000];

function colourOf(index) { return `--line-${(index % 8) + 1}`; }

function smooth(values, weight) {
  let last = null, mass = 0;
  return values.map((value) => {
    if (value == null) return value;
    last = (last ?? 0) * weight + value * (1 - weight);
    mass = mass * weight + (1 - weight); // corrects the average for its start at zero
    return last / mass;
  });
}

function spansDecades(series) {
  const values = series.flatMap((s) => s.y).filter((v) => v != null);
  return values.length > 1 && Math.min(...values) > 0 && Math.max(...values) > 30 * Math.min(...values);
}

// Lines of a chart: with smoothing each line is drawn twice, faint as measured and strong as averaged.
function linesOf(series, weight) {
  return series.flatMap((s) => {
    if (!weight || s.points || s.stack) return [s];
    return [{ ...s, faint: true }, { ...s, y: smooth(s.y, weight), measured: s.y }];
  });
}

function uplotSeries(line) {
  const few = line.x.length <= 60;
  const colour = () => css(line.colour);
  return {
    label: line.label,
    stroke: line.faint ? () => css(line.colour) + "40" : colour,
    width: line.stack ? 0 : line.faint ? 1 : 1.75,
    dash: line.dash && !line.faint ? [6, 4] : undefined,
    fill: line.stack ? colour : undefined,
    paths: line.stack ? uPlot.paths.bars({ size: [1, 40], gap: few ? 2 : 0 }) : undefined,
    points: { show: line.stack || line.faint ? false : line.points || few, size: line.points ? 7 : 4, fill: colour },
  };
}

function drawErrorBars(u, lines) {
  const { ctx } = u, half = 4 * devicePixelRatio;
  lines.forEach((line, index) => {
    if (!line.low) return;
    ctx.save();
    ctx.strokeStyle = css(line.colour);
    ctx.lineWidth = 1.5 * devicePixelRatio;
    line.x.forEach((step, i) => {
      if (line.low[i] == null || !u.series[index + 1].show) return;
      const x = u.valToPos(step, "x", true);
      const [bottom, top] = [line.low[i], line.high[i]].map((value) => u.valToPos(value, "y", true));
      ctx.beginPath();
      ctx.moveTo(x, bottom); ctx.lineTo(x, top);
      ctx.moveTo(x - half, bottom); ctx.lineTo(x + half, bottom);
      ctx.moveTo(x - half, top); ctx.lineTo(x + half, top);
      ctx.stroke();
    });
    ctx.restore();
  });
}

function drawMarks(u, marks) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.lineWidth = devicePixelRatio;
  for (const mark of marks) {
    const x = u.valToPos(mark.step, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = ctx.fillStyle = css("--soft");
    ctx.setLineDash(mark.kind === "resume" ? [4 * devicePixelRatio, 3 * devicePixelRatio] : []);
    ctx.beginPath();
    ctx.moveTo(x, mark.kind === "resume" ? bbox.top : bbox.top + bbox.height - 6 * devicePixelRatio);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

function range(chart) {
  return (u, low, high) => {
    const { lines, options } = chart;
    const bars = lines.flatMap((l) => [...(l.low ?? []), ...(l.high ?? [])]).filter((v) => v != null);
    low = Math.min(low ?? 0, ...bars); high = Math.max(high ?? 1, ...bars);
    if (options.fromZero) low = Math.min(0, low);
    if (low === high) return low === 0 ? [0, 1] : low > 0 ? [0, 2 * high] : [2 * low, 0];
    const [least, most] = uPlot.rangeNum(low, high, 0.08, true);
    return [low >= 0 ? Math.max(0, least) : least, options.most ? Math.max(high, Math.min(options.most, most)) : most];
  };
}

function uplotOptions(chart, width) {
  const { lines, options } = chart;
  const axis = { stroke: () => css("--soft"), grid: { stroke: () => css("--grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  const log = options.log && spansDecades(lines);
  const label = { labelFont: "12px system-ui, sans-serif", labelSize: 18, labelGap: 0 };
  return {
    width, height: CHART_HEIGHT, legend: { show: false },
    cursor: { sync: { key: "step", setSeries: false }, points: { size: 6 }, drag: { x: true, y: false }, y: false },
    scales: {
      x: { time: false, range: (u, low, high) => (low == null ? [0, 1] : low === high ? [low - 1, high + 1] : [low, high]) },
      y: log ? { distr: 3 } : { range: range(chart) },
    },
    axes: [
      { ...axis, ...label, label: "step", size: 24, gap: 4, incrs: STEPS, space: 60, values: (u, ticks) => ticks.map((t) => (t == null ? "" : t.toLocaleString("en"))) },
      { ...axis, size: 52, gap: 6, space: 36, values: (u, ticks) => ticks.map((t) => (t == null ? "" : log && Math.log10(t) % 1 ? "" : tick(t))) },
    ],
    series: [{ label: "step" }, ...lines.map(uplotSeries)],
    hooks: {
      draw: [(u) => { drawMarks(u, chart.options.marks ?? []); drawErrorBars(u, chart.lines); }],
      setCursor: [(u) => chart.show(u.cursor.idx)],
      setSelect: [(u) => { chart.zoomed = u.select.width > 0; }],
    },
  };
}

function tick(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${value / 1e6}M`;
  if (size >= 1e4) return `${value / 1e3}k`;
  if (size !== 0 && size < 1e-3) return Number(value.toPrecision(2)).toExponential();
  return String(Number(value.toPrecision(6)));
}

function stacked(series) {
  const sums = series.map((s) => s.y.map(() => 0));
  series.forEach((s, i) => s.y.forEach((v, j) => { sums[i][j] = (i ? sums[i - 1][j] : 0) + (v ?? 0); }));
  return series.map((s, i) => ({ ...s, y: sums[i], measured: s.y })).reverse(); // the highest is drawn first
}
