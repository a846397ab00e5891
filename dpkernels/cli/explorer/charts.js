// Charts as SVG text. Each has a description in words.

const charts = (() => {
  let W = 640;
  const H = 270;
  const [LEFT, RIGHT, TOP, BOTTOM] = [58, 16, 22, 42];
  // A chart is drawn for so many pixels, so that its letters have their size everywhere.
  const fit = (width) => (W = Math.min(Math.max(Math.round(width), 280), 900));

  const short = (value) => (value !== 0 && (Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3) ? value.toExponential(0).replace("e+", "e") : String(Number(value.toPrecision(3))));
  const inside = (share) => Math.min(Math.max(share, -0.2), 1.2);
  // Scales: the share of an axis at a value, and its ticks.
  function linear(low, high) {
    const power = 10 ** Math.floor(Math.log10((high - low) / 4));
    const step = [1, 2, 5, 10].map((f) => f * power).find((s) => (high - low) / s <= Math.max(W / 90, 4));
    const first = Math.ceil(low / step);
    const ticks = Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => (first + i) * step);
    return { share: (v) => inside((v - low) / (high - low)), ticks };
  }
  function logarithmic(low, high) {
    const [a, b] = [Math.log10(low), Math.log10(high)];
    const step = Math.max(1, Math.ceil((b - a) / 6));
    const first = Math.ceil(a - 1e-9);
    const powers = Array.from({ length: Math.max(0, Math.floor((b + 1e-9 - first) / step) + 1) }, (_, i) => 10 ** (first + i * step));
    return { share: (v) => inside((Math.log10(v) - a) / (b - a)), ticks: powers.length > 1 ? powers : [low, Math.sqrt(low * high), high] };
  }
  const px = (v) => v.toFixed(1);
  const X = (scale) => (v) => px(LEFT + scale.share(v) * (W - LEFT - RIGHT));
  const Y = (scale) => (v) => px(H - BOTTOM - scale.share(v) * (H - TOP - BOTTOM));
  const path = (points, x, y) => points.map(([a, b], i) => `${i ? "L" : "M"}${x(a)} ${y(b)}`).join("");

  function frame(title, xScale, yScale, xName, yName, marks) {
    const [x, y, right, bottom] = [X(xScale), Y(yScale), W - RIGHT, H - BOTTOM];
    const across = xScale.ticks.map((t) => `<path class="frame" d="M${x(t)} ${TOP}V${bottom}"/><text x="${x(t)}" y="${bottom + 16}" text-anchor="middle">${short(t)}</text>`);
    const up = yScale.ticks.map((t) => `<path class="frame" d="M${LEFT} ${y(t)}H${right}"/><text x="${LEFT - 6}" y="${Number(y(t)) + 4}" text-anchor="end">${short(t)}</text>`);
    const names = `<text x="${(LEFT + right) / 2}" y="${H - 6}" text-anchor="middle">${xName}</text><text x="4" y="${TOP - 9}" text-anchor="start">${yName}</text>`;
    const id = yName.replace(/\W/g, "");
    const clip = `<clipPath id="${id}"><rect x="${LEFT}" y="${TOP - 4}" width="${right - LEFT}" height="${bottom - TOP + 8}"/></clipPath>`;
    return `<svg viewBox="0 0 ${W} ${H}" role="img" aria-label="${title}">${clip}${across.join("")}${up.join("")}${names}<g clip-path="url(#${id})">${marks}</g></svg>`;
  }

  // Curves [[x, y], ..] of classes "line" or "other", and a dot.
  function curves({ title, lines, dot, xLog, xRange, yRange, xName, yName }) {
    const [xScale, yScale] = [(xLog ? logarithmic : linear)(...xRange), logarithmic(...yRange)];
    const [x, y] = [X(xScale), Y(yScale)];
    const drawn = lines.map(([kind, points]) => `<path class="${kind}" d="${path(points, x, y)}"/>`).join("");
    const mark = dot ? `<circle class="dot" cx="${x(dot[0])}" cy="${y(dot[1])}" r="5"/>` : "";
    return frame(title, xScale, yScale, xName, yName, drawn + mark);
  }

  // A report: a density as an area, probabilities as stems, the true value, and the interval of inputs.
  function report({ title, density, atoms, truth, range, inputs }) {
    const xScale = linear(...range);
    const height = (values) => Y(linear(0, 1.05 * values.reduce((most, [, v]) => Math.max(most, v), 1e-300)));
    const [x, y, stem, zero] = [X(xScale), height(density), height(atoms), H - BOTTOM];
    const line = path(density, x, y);
    const area = line && `<path class="area" d="${line}L${x(density.at(-1)[0])} ${zero}L${x(density[0][0])} ${zero}Z"/><path class="line" d="${line}"/>`;
    const stems = atoms.map(([at, p]) => `<path class="atom" d="M${x(at)} ${zero}V${Math.min(stem(p), zero - 1)}"/>`).join("");
    const box = inputs ? `<rect class="range" x="${x(inputs[0])}" width="${px(x(inputs[1]) - x(inputs[0]))}" y="${TOP}" height="${zero - TOP}"/>` : "";
    const [gap, anchor] = x(truth) > W - 110 ? [-6, "end"] : [6, "start"];
    const here = `<path class="truth" d="M${x(truth)} ${zero}V${TOP}"/><text class="label" x="${Number(x(truth)) + gap}" y="${TOP + 12}" text-anchor="${anchor}">true value</text>`;
    return frame(title, xScale, { ticks: [] }, "report", "density", box + area + stems + here);
  }
  // The value under a pointer on such a chart, as a share of the x axis.
  const share = (clientX, box) => (((clientX - box.left) / box.width) * W - LEFT) / (W - LEFT - RIGHT);

  return { curves, report, share, fit };
})();
