// Charts as SVG text. Each is described in words for whoever does not see it.

const charts = (() => {
  let W = 640;
  const H = 270;
  const SIDE = { left: 58, right: 16, top: 22, bottom: 42 };
  const short = (value) => {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e5 || size < 1e-3) return value.toExponential(0).replace("e+", "e");
    return String(Number(value.toPrecision(3)));
  };
  function linear(low, high) {
    const step = 10 ** Math.floor(Math.log10((high - low) / 4));
    const wide = [1, 2, 5, 10].map((f) => f * step).find((s) => (high - low) / s <= Math.max(W / 90, 4));
    const ticks = [];
    for (let t = Math.ceil(low / wide); t * wide <= high * (1 + 1e-12) + 1e-300; t++) ticks.push(t * wide);
    return { at: (v) => (v - low) / (high - low), ticks };
  }
  function logarithmic(low, high) {
    const [a, b] = [Math.log10(low), Math.log10(high)];
    const every = Math.max(1, Math.ceil((b - a) / 6));
    let ticks = [];
    for (let t = Math.ceil(a - 1e-9); t <= b + 1e-9; t += every) ticks.push(10 ** t);
    if (ticks.length < 2) ticks = [low, Math.sqrt(low * high), high];
    return { at: (v) => (Math.log10(v) - a) / (b - a), ticks };
  }
  const clamp = (v) => Math.min(Math.max(v, -0.2), 1.2);
  const X = (scale) => (v) => SIDE.left + clamp(scale.at(v)) * (W - SIDE.left - SIDE.right);
  const Y = (scale) => (v) => H - SIDE.bottom - clamp(scale.at(v)) * (H - SIDE.top - SIDE.bottom);
  const round = (v) => v.toFixed(1);
  const path = (points, x, y) => points.map(([a, b], i) => `${i ? "L" : "M"}${round(x(a))} ${round(y(b))}`).join("");

  function frame(title, x, y, xScale, yScale, xName, yName, inside) {
    const [left, right, top, bottom] = [SIDE.left, W - SIDE.right, SIDE.top, H - SIDE.bottom];
    const across = xScale.ticks.map(
      (t) => `<path class="frame" d="M${round(x(t))} ${top}V${bottom}"/><text x="${round(x(t))}" y="${bottom + 16}" text-anchor="middle">${short(t)}</text>`
    );
    const up = (yScale?.ticks ?? []).map(
      (t) => `<path class="frame" d="M${left} ${round(y(t))}H${right}"/><text x="${left - 6}" y="${round(y(t) + 4)}" text-anchor="end">${short(t)}</text>`
    );
    const names = `<text x="${(left + right) / 2}" y="${H - 6}" text-anchor="middle">${xName}</text><text x="4" y="${top - 9}" text-anchor="start">${yName}</text>`;
    return (
      `<svg viewBox="0 0 ${W} ${H}" role="img" aria-label="${title}">` +
      `<clipPath id="${yName.replace(/\W/g, "")}"><rect x="${left}" y="${top - 4}" width="${right - left}" height="${bottom - top + 8}"/></clipPath>` +
      `${across.join("")}${up.join("")}${names}<g clip-path="url(#${yName.replace(/\W/g, "")})">${inside}</g></svg>`
    );
  }

  // Drawn for so many pixels, so that letters have their size everywhere.
  const fit = (width) => (W = Math.min(Math.max(Math.round(width), 280), 900));

  // Curves [[x, y], ..] of classes "line" or "other", and a dot.
  function curves({ title, lines, dot, xLog, xRange, yRange, xName, yName }) {
    const xScale = (xLog ? logarithmic : linear)(...xRange);
    const yScale = logarithmic(...yRange);
    const [x, y] = [X(xScale), Y(yScale)];
    const drawn = lines.map(([kind, points]) => `<path class="${kind}" d="${path(points, x, y)}"/>`).join("");
    const mark = dot ? `<circle class="dot" cx="${round(x(dot[0]))}" cy="${round(y(dot[1]))}" r="5"/>` : "";
    return frame(title, x, y, xScale, yScale, xName, yName, drawn + mark);
  }

  // The law of a report: a density as an area, probabilities as stems, the true value, the interval of inputs.
  function report({ title, density, atoms, truth, range, inputs }) {
    const xScale = linear(...range);
    const x = X(xScale);
    const tallest = Math.max(...density.map(([, f]) => f), 1e-300) * 1.05;
    const heaviest = Math.max(...atoms.map(([, p]) => p), 1e-300) * 1.05;
    const [y, stem] = [Y(linear(0, tallest)), Y(linear(0, heaviest))];
    const zero = y(0);
    const area = density.length
      ? `<path class="area" d="${path(density, x, y)}L${round(x(density.at(-1)[0]))} ${zero}L${round(x(density[0][0]))} ${zero}Z"/><path class="line" d="${path(density, x, y)}"/>`
      : "";
    const stems = atoms.map(([at, p]) => `<path class="atom" d="M${round(x(at))} ${zero}V${round(Math.min(stem(p), zero - 1))}"/>`).join("");
    const box = inputs ? `<rect class="range" x="${round(x(inputs[0]))}" width="${round(x(inputs[1]) - x(inputs[0]))}" y="${SIDE.top}" height="${zero - SIDE.top}"/>` : "";
    const flip = x(truth) > W - 110;
    const here = `<path class="truth" d="M${round(x(truth))} ${zero}V${SIDE.top}"/><text class="label" x="${round(x(truth) + (flip ? -6 : 6))}" y="${SIDE.top + 12}" text-anchor="${flip ? "end" : "start"}">true value</text>`;
    return frame(title, x, y, xScale, null, "report", "how likely", box + area + stems + here);
  }
  // The value under a pointer on such a chart, as a share of the x axis.
  const share = (clientX, box) => ((clientX - box.left) / box.width * W - SIDE.left) / (W - SIDE.left - SIDE.right);

  return { curves, report, share, fit };
})();
