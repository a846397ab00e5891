"use strict";
// What the page knows of mechanisms. Lengths are in widths of the interval ("person") or sensitivities ("statistic");
// inputs of the interval are in [0, 1]. Closed forms are those of the docstrings; the rest is looked up in `tables`.

function makeModel(tables) {
  // ---------------------------------------------------------------- tables on geometric grids

  const place = ([first, last, count], value) => ((count - 1) * Math.log(value / first)) / Math.log(last / first);

  // The four nodes about a place, of those from `first` on, and their weights, of the cubic through them.
  function cubic(at, count, first = 0) {
    const start = Math.min(Math.max(Math.floor(at) - 1, first), count - 4);
    const weights = [0, 1, 2, 3].map((i) =>
      [0, 1, 2, 3].reduce((w, j) => (i === j ? w : (w * (at - start - j)) / (i - j)), 1)
    );
    return { start, weights };
  }
  const weighted = ({ start, weights }, values) => weights.reduce((sum, w, i) => sum + w * values[start + i], 0);
  const onGrid = (grid, values, value) => weighted(cubic(place(grid, value), grid[2]), values);

  // The same of a mechanism whose best width jumps at some budgets: by the nodes on this side of the jump.
  function between(name, grid, values, value) {
    const at = place(grid, value);
    let [first, end] = [0, grid[2]];
    for (const jump of tables.jumps[name] ?? []) {
      if (value >= jump) first = Math.max(first, Math.ceil(place(grid, jump)));
      else end = Math.min(end, Math.ceil(place(grid, jump)));
    }
    return weighted(cubic(at, end, first), values);
  }
  // The largest budget in [low, high] at which a rising function is at most the target; null if there is none.
  function largest(rising, target, low, high) {
    if (!(rising(low) <= target)) return null;
    if (rising(high) <= target) return high;
    for (let i = 0; i < 44; i++) {
      const middle = Math.sqrt(low * high);
      if (rising(middle) <= target) low = middle;
      else high = middle;
    }
    return low;
  }

  // ---------------------------------------------------------------- the normal law

  // Phi(-t) / phi(t): for small t by the series of Phi, else by continued fraction.
  function mills(t) {
    if (t < 3) {
      let term = t;
      let sum = t;
      for (let k = 1; k < 3000 && Math.abs(term) > 1e-17 * Math.abs(sum); k++) sum += term *= (t * t) / (2 * k + 1);
      return Math.sqrt(Math.PI / 2) * Math.exp((t * t) / 2) - sum;
    }
    let fraction = t;
    for (let k = 80; k > 0; k--) fraction = t + k / fraction;
    return 1 / fraction;
  }
  const phi = (t) => Math.exp((-t * t) / 2) / Math.sqrt(2 * Math.PI);
  const normalTail = (t) => (t < -30 ? 1 : phi(t) * mills(t));
  // Delta of Gaussian noise of standard deviation 1/mu sensitivities: e^eps phi(b) = phi(a), b = a - mu.
  function gaussianDelta(mu, epsilon) {
    const a = mu / 2 - epsilon / mu;
    if (a > 25) return 1;
    return Math.max(phi(a) * (mills(-a) - mills(mu - a)), 0);
  }
  function gaussianEpsilon(mu, delta) {
    if (gaussianDelta(mu, 0) <= delta) return 0;
    let low = 0;
    let high = mu * mu + 10 * mu;
    for (let i = 0; i < 60; i++) {
      const middle = (low + high) / 2;
      if (gaussianDelta(mu, middle) > delta) low = middle;
      else high = middle;
    }
    return high;
  }
  const gaussianMu = (epsilon, delta) => largest((mu) => gaussianDelta(mu, epsilon), delta, 1e-9, 1e3);
  function normalQuantile(tail) {
    let low = 0;
    let high = 40;
    for (let i = 0; i < 60; i++) {
      const middle = (low + high) / 2;
      if (normalTail(middle) > tail) low = middle;
      else high = middle;
    }
    return high;
  }

  // ---------------------------------------------------------------- reports with three losses: loss, 0 and -loss

  // Least epsilon of `count` of them at delta: probabilities of k, k - 1, .. more plus than minus, by the recurrence of
  // the coefficients of (minus + zero x + plus x^2)^k, whose terms are positive down to the middle.
  function composedFlat({ loss, plus, zero, minus }, count, delta) {
    let scale = count * Math.log(plus);
    let before = 0;
    let now = 1;
    let upper = 0;
    let lower = 0; // Under the other law, times e^((more - 1) loss): the epsilon where the next ones begin to count.
    for (let i = 0; i < count; i++) {
      const more = count - i;
      const p = now * Math.exp(scale);
      upper += p;
      lower = (lower + p) * Math.exp(-loss);
      if (upper - lower >= delta) return (more - 1) * loss + Math.log((upper - delta) / lower);
      const next = ((count - i) * zero * now + (2 * count - i + 1) * minus * before) / ((i + 1) * plus);
      before = now;
      now = next;
      if (now > 1e150) {
        scale += Math.log(1e150);
        now /= 1e150;
        before /= 1e150;
      }
    }
    return 0;
  }
  const flatProfile = (flat) => (e) => (e >= flat.loss ? 0 : flat.plus - Math.exp(e) * flat.minus);

  // ---------------------------------------------------------------- laws of a report on [0, 1]

  const WINDOWS = {
    uniform: { area: 1, spread: 1 / 12, at: (z) => (z >= 0 && z <= 1 ? 1 : 0) },
    sine: { area: 2 / Math.PI, spread: 1 / 4 - 2 / Math.PI ** 2, at: (z) => (z >= 0 && z <= 1 ? Math.sin(Math.PI * z) : 0) },
    triangle: { area: 1 / 2, spread: 1 / 24, at: (z) => Math.max(0, 1 - 2 * Math.abs(z - 0.5)) },
  };

  // y + k h((v - a)/m) on [-1, 1], v the report scaled by C about the middle.
  function windowedLaw(windowName, m, relative) {
    const window = WINDOWS[windowName];
    const level = 1 / (relative * window.area * m + 2);
    const k = relative * level;
    const S1 = window.area * k * m;
    const S2 = 2 * level;
    const C = 2 * S1 * (1 - m / 2);
    const start = (t) => ((t - 0.5) * C) / S1 - m / 2;
    const scaled = (v, t) => level + k * window.at((v - start(t)) / m);
    const inside = S2 / 3 + S1 * window.spread * m * m;
    const variance = (t) => (inside + (((t - 0.5) * C) ** 2 * S2) / S1) / C ** 2;
    const law = { low: 0.5 - 1 / C, high: 0.5 + 1 / C, variance, worst: Math.max(variance(0.5), variance(1)), S1 };
    law.atoms = () => [];
    law.density = (t) => {
      const a = start(t);
      const points = [];
      for (let i = 0; i <= 120; i++) points.push(-1 + i / 60);
      for (let i = 0; i <= 60; i++) points.push(a + (i / 60) * m);
      if (windowName === "uniform") points.push(a - 1e-9, a + m + 1e-9);
      const kept = points.filter((v) => v >= -1 && v <= 1).sort((p, q) => p - q);
      return kept.map((v) => [0.5 + v / C, scaled(v, t) * C]);
    };
    if (windowName === "uniform") {
      const both = Math.max(0, 2 * m - 2); // Where the windows of the two ends overlap.
      const minus = (m - both) * level;
      const plus = minus * (1 + relative);
      law.flat = { loss: Math.log1p(relative), plus, zero: 1 - plus - minus, minus };
      law.profile = flatProfile(law.flat);
    } else law.profile = sampledProfile((v) => scaled(v, 1), (v) => scaled(v, 0));
    return law;
  }
  function sampledProfile(p, q) {
    const count = 3000;
    let [x, y] = [null, null];
    return (e) => {
      x ??= Float64Array.from({ length: count }, (_, i) => p(-1 + (2 * i + 1) / count));
      y ??= Float64Array.from({ length: count }, (_, i) => q(-1 + (2 * i + 1) / count));
      const factor = Math.exp(e);
      let sum = 0;
      for (let i = 0; i < count; i++) if (x[i] > factor * y[i]) sum += x[i] - factor * y[i];
      return (sum * 2) / count;
    };
  }

  function duchiLaw(epsilon) {
    const B = 0.5 / Math.tanh(epsilon / 2);
    const plus = 1 / (1 + Math.exp(-epsilon));
    const flat = { loss: epsilon, plus, zero: 0, minus: 1 - plus };
    const variance = (t) => B * B - (t - 0.5) ** 2;
    return {
      low: 0.5 - B,
      high: 0.5 + B,
      variance,
      worst: B * B,
      atoms: (t) => [
        [0.5 - B, 0.5 - (t - 0.5) / (2 * B)],
        [0.5 + B, 0.5 + (t - 0.5) / (2 * B)],
      ],
      density: () => [],
      flat,
      profile: flatProfile(flat),
    };
  }
  const wangLaw = (epsilon) => windowedLaw("uniform", 2 / (1 + Math.exp(epsilon / 2)), Math.expm1(epsilon));

  // The uniform window placed at the input itself: those reports, drawn together about the middle by S1.
  function squareWaveLaw(m, epsilon) {
    const found = windowedLaw("uniform", m, Math.expm1(epsilon));
    const { S1 } = found;
    const drawn = (y) => 0.5 + (y - 0.5) * S1;
    return {
      ...found,
      low: drawn(found.low),
      high: drawn(found.high),
      mean: drawn,
      variance: (t) => found.variance(t) * S1 ** 2,
      worst: found.worst * S1 ** 2,
      density: (t) => found.density(t).map(([y, f]) => [drawn(y), f / S1]),
    };
  }

  // Wang 2019, equation (7).
  const root = 405 * Math.sqrt(241);
  const HYBRID = Math.log((-5 + 2 * Math.cbrt(6353 - root) + 2 * Math.cbrt(6353 + root)) / 27);
  function hybridLaw(epsilon) {
    const points = duchiLaw(epsilon);
    if (epsilon <= HYBRID) return points;
    const spread = wangLaw(epsilon);
    const w = -Math.expm1(-epsilon / 2);
    const mix = (a, b) => w * a + (1 - w) * b;
    const variance = (t) => mix(spread.variance(t), points.variance(t));
    const flat = { loss: epsilon };
    for (const part of ["plus", "zero", "minus"]) flat[part] = mix(spread.flat[part], points.flat[part]);
    return {
      low: Math.min(spread.low, points.low),
      high: Math.max(spread.high, points.high),
      variance,
      worst: Math.max(variance(0.5), variance(1)),
      atoms: (t) => points.atoms(t).map(([y, p]) => [y, (1 - w) * p]),
      density: (t) => spread.density(t).map(([y, f]) => [y, w * f]),
      flat,
      profile: flatProfile(flat),
    };
  }

  // The linear program's optimum: its error at any budget, its reports at the budgets of which the page has the table.
  function optimalLaw(epsilon) {
    const [worst, half] = tables.optimum.map((column) => Math.exp(onGrid(tables.grids.optimum, column, epsilon)));
    const table = tables.drawn.find((one) => one.epsilon === epsilon);
    const law = { low: 0.5 - half, high: 0.5 + half, worst };
    if (!table) return { ...law, untabulated: true };
    const { reports, rows: lower } = table;
    const rows = [...lower, ...lower.slice(0, -1).reverse().map((row) => [...row].reverse())];
    const mixed = (t) => {
      const i = Math.min(Math.floor(t * (rows.length - 1)), rows.length - 2);
      const share = t * (rows.length - 1) - i;
      return reports.map((_, j) => (1 - share) * rows[i][j] + share * rows[i + 1][j]);
    };
    law.atoms = (t) => mixed(t).map((p, j) => [0.5 + reports[j], p]).filter(([, p]) => p > 0);
    law.variance = (t) => mixed(t).reduce((sum, p, j) => sum + p * reports[j] ** 2, 0) - (t - 0.5) ** 2;
    law.density = () => [];
    const excess = (p, q, factor) => p.reduce((sum, value, j) => sum + Math.max(value - factor * q[j], 0), 0);
    law.profile = (e) => Math.max(...lower.flatMap((p) => rows.flatMap((q) => [excess(p, q, Math.exp(e)), excess(q, p, Math.exp(e))])));
    return law;
  }

  // ---------------------------------------------------------------- laws of noise, for a sensitivity of 1

  const curve = (height, reach) => (t) =>
    Array.from({ length: 241 }, (_, i) => ((i - 120) / 120) * reach).map((z) => [t + z, height(Math.abs(z))]);
  const noise = (law) => ({ low: -Infinity, high: Infinity, variance: () => law.worst, atoms: () => [], ...law });

  function laplaceLaw(epsilon) {
    const b = 1 / epsilon;
    return noise({
      worst: 2 * b * b,
      density: curve((z) => Math.exp(-z / b) / (2 * b), 6 * b),
      profile: (e) => (e >= epsilon ? 0 : -Math.expm1((e - epsilon) / 2)),
      beyond: (alpha) => -b * Math.log(alpha),
    });
  }
  function staircaseLaw(epsilon) {
    const q = Math.exp(-epsilon);
    const gamma = 1 / (1 + Math.exp(epsilon / 2));
    const a = -Math.expm1(-epsilon) / (2 * (gamma + q * (1 - gamma)));
    const sums = [1 / (1 - q), q / (1 - q) ** 2, (q * (1 + q)) / (1 - q) ** 3]; // of q^k, k q^k, k^2 q^k
    const high = gamma * sums[2] + gamma ** 2 * sums[1] + (gamma ** 3 / 3) * sums[0];
    const low = (1 - gamma) * sums[2] + (1 - gamma ** 2) * sums[1] + ((1 - gamma ** 3) / 3) * sums[0];
    const plus = 0.5 + a * gamma;
    const flat = { loss: epsilon, plus, zero: a * q * (1 - 2 * gamma), minus: q * plus };
    // P(|Z| > z) falls by q a step; within one it is broken once.
    const beyond = (alpha) => {
      const k = Math.floor(Math.log(alpha) / -epsilon);
      const left = 1 - alpha / q ** k; // of the period's mass on both sides
      const first = 2 * a * gamma;
      return left <= first ? k + left / (2 * a) : k + gamma + (left - first) / (2 * a * q);
    };
    const reach = Math.max(3, Math.ceil(6 / epsilon));
    const density = (t) => {
      const right = [];
      for (let k = 0; k < reach; k++) {
        const [up, down] = [a * q ** k, a * q ** (k + 1)];
        right.push([k, up], [k + gamma, up], [k + gamma, down], [k + 1, down]);
      }
      return [...right.map(([z, f]) => [t - z, f]).reverse(), ...right.map(([z, f]) => [t + z, f])];
    };
    return noise({ worst: 2 * a * (high + q * low), density, flat, profile: flatProfile(flat), beyond });
  }
  function truncatedLaplaceLaw(epsilon, { delta }) {
    const b = 1 / epsilon;
    const beta = Math.log1p(Math.expm1(epsilon) / (2 * delta)); // The bound, in scales.
    const mass = -Math.expm1(-beta);
    const cdf = (z) => {
      const t = Math.min(Math.max(z / b, -beta), beta);
      const below = (Math.exp(-Math.abs(t)) - Math.exp(-beta)) / (2 * mass);
      return t < 0 ? below : 1 - below;
    };
    return noise({
      low: -beta * b,
      high: beta * b,
      worst: (b * b * (2 - Math.exp(-beta) * (beta * beta + 2 * beta + 2))) / mass,
      density: curve((z) => (z > beta * b ? 0 : Math.exp(-z / b) / (2 * b * mass)), Math.min(6, beta) * b),
      profile: (e) => {
        const at = e >= epsilon ? 1 - beta * b : (1 - e * b) / 2;
        return cdf(at) - Math.exp(e) * cdf(at - 1);
      },
      beyond: (alpha) => -b * Math.log(alpha * mass + Math.exp(-beta)),
    });
  }
  function gaussianLaw(epsilon, { delta }) {
    const mu = gaussianMu(epsilon, delta);
    return noise({
      mu,
      worst: 1 / (mu * mu),
      density: curve((z) => mu * phi(mu * z), 4 / mu),
      profile: (e) => gaussianDelta(mu, e),
      beyond: (alpha) => normalQuantile(alpha / 2) / mu,
    });
  }

  // Laplace noise in whole numbers; the sensitivity is one, too.
  function discreteLaplaceLaw(epsilon, { sensitivity: D }) {
    const q = Math.exp(-epsilon / D);
    const p = (k) => ((1 - q) / (1 + q)) * q ** Math.abs(k);
    const reach = Math.ceil((6 * D) / epsilon);
    const drawn = (t) => Array.from({ length: 2 * reach + 1 }, (_, i) => [t + (i - reach) / D, p(i - reach)]);
    const flat = { loss: epsilon, plus: 1 / (1 + q), zero: 0, minus: q / (1 + q) };
    const few = reach <= 200;
    return noise({
      worst: (2 * q) / (1 - q) ** 2 / D ** 2,
      atoms: few ? drawn : () => [],
      density: few ? () => [] : curve((z) => p(z * D) * D, reach / D),
      flat: D === 1 ? flat : null,
      profile: (e) => {
        let sum = flat.plus * Math.max(0, 1 - Math.exp(e - epsilon));
        for (let k = 1; k < D; k++) sum += p(k) * Math.max(0, 1 - Math.exp(e - epsilon * (1 - (2 * k) / D)));
        return sum;
      },
      beyond: (alpha) => Math.max(0, Math.ceil(Math.log((alpha * (1 + q)) / 2) / Math.log(q) - 1 - 1e-9)) / D,
    });
  }

  // ---------------------------------------------------------------- mechanisms

  function tabulated(name, window) {
    return (epsilon) => {
      const { parameters: grid } = tables.grids;
      const [m, factor] = tables.windowed[name].map((column) => Math.exp(between(name, grid, column, epsilon)));
      return windowedLaw(window, Math.min(m, 1.999999), factor * Math.expm1(epsilon));
    };
  }
  const composite = (window, base) => ({
    python: (a) => `dpk.composite("${window}", "${base}", ${a})`,
    law: tabulated(`${window}-${base}`, window),
  });
  // The width of a piecewise mechanism that tells most of the distribution of so many values, to the digits written.
  const narrowWidth = (epsilon, { n }) => 2 / Number((2 / Math.exp(ofCrowd(tables.narrow.widths, epsilon, n))).toPrecision(6));
  const halfWidth = (m) => Number((m / (4 - 2 * m)).toPrecision(6));
  const named = (name, law, more) => ({ python: (a) => `dpk.${name}(${a})`, law, ...more });
  const PERSON = {
    optimal: named("optimal", optimalLaw, { most: tables.grids.optimum[1] }),
    hybrid: named("hybrid", hybridLaw),
    duchi: named("duchi", duchiLaw),
    piecewise: named("piecewise", tabulated("piecewise", "uniform")),
    "piecewise-wang2019": named("piecewise_wang2019", wangLaw),
    "piecewise-triangle": named("piecewise_triangle", tabulated("piecewise-triangle", "triangle")),
    "sine-constant": composite("sine", "constant"),
    "triangle-constant": composite("triangle", "constant"),
    "piecewise-narrow": named("piecewise", (e, state) => windowedLaw("uniform", narrowWidth(e, state), Math.expm1(e)), {
      command: "piecewise",
      narrow: true,
      own: (e, state) => ({ eta: Number((2 / narrowWidth(e, state)).toPrecision(6)) }),
    }),
    "square-wave": named("square_wave", (e, state) => squareWaveLaw(narrowWidth(e, state), e), {
      narrow: true,
      own: (e, state) => ({ half_width: halfWidth(narrowWidth(e, state)) }),
    }),
    laplace: named("laplace", laplaceLaw, { noise: true }),
    staircase: named("staircase", staircaseLaw, { noise: true }),
  };
  const STATISTIC = {
    laplace: PERSON.laplace,
    staircase: PERSON.staircase,
    "truncated-laplace": named("truncated_laplace", truncatedLaplaceLaw, { noise: true, delta: true, once: true }),
    "discrete-laplace": named("discrete_laplace", discreteLaplaceLaw, { noise: true, whole: true }),
    gaussian: {
      python: (a) => `accountants.calibrate.gaussian(${a})`,
      law: gaussianLaw,
      noise: true,
      delta: true,
    },
  };
  for (const list of [PERSON, STATISTIC]) for (const [name, one] of Object.entries(list)) one.name = name;

  const laws = new Map();
  function law(one, epsilon, state) {
    const key = `${one.name} ${epsilon} ${one.delta ? state.delta : ""} ${one.narrow ? state.n : ""} ${one.whole ? state.sensitivity : ""}`;
    if (laws.size > 4000) laws.clear();
    if (!laws.has(key)) laws.set(key, one.law(epsilon, state));
    return laws.get(key);
  }

  // ---------------------------------------------------------------- the distribution of the values

  // At a budget and a crowd, of a table by crowds and then by budgets.
  function ofCrowd(rows, epsilon, n, name) {
    const { distributed, values } = tables.grids;
    return onGrid(values, rows.map((row) => between(name, distributed, row, epsilon)), n);
  }
  // The expected error of the cdf, in widths of the interval.
  const distributionError = (one, epsilon, n) =>
    Math.exp(ofCrowd(one.narrow ? tables.narrow.errors : tables.distribution[one.name], epsilon, n, one.name));

  // ---------------------------------------------------------------- several reports, shuffled reports

  const least = 0.01;
  const most = (one, state) => {
    if (state.shuffle) return hideable(state.n, state.delta);
    const composing = state.count > 1 && !flatOf(one) && one.name !== "gaussian";
    return Math.min(one.most ?? 20, composing ? tables.grids.reports[1] : 20, state.know === "distribution" ? tables.grids.distributed[1] : 20);
  };
  const FLAT = ["duchi", "hybrid", "piecewise", "piecewise-wang2019", "piecewise-narrow", "square-wave", "staircase", "discrete-laplace"];
  const flatOf = (one) => FLAT.includes(one.name);

  // Epsilon of `count` reports at delta, each of its own epsilon.
  function composed(one, epsilon, count, state) {
    if (count === 1) return epsilon;
    const { delta } = state;
    const found = law(one, epsilon, state);
    if (found.flat) return composedFlat(found.flat, count, delta);
    if (found.mu) return gaussianEpsilon(found.mu * Math.sqrt(count), delta);
    const rows = tables.composed[one.name][tables.deltas.indexOf(delta)];
    const row = rows[tables.counts.indexOf(count)];
    const log = one.name === "optimal" ? row[tables.optimalReports.indexOf(epsilon)] : between(one.name, tables.grids.reports, row, epsilon);
    return Math.min(epsilon * Math.exp(log), count * epsilon);
  }
  // The largest budget of a report whose crowd is tabulated; tables are by the share of it.
  const crowd = (people) => Math.min(people, tables.grids.people[1]);
  const hideable = (people, delta) => Math.log(crowd(people) / (8 * Math.log(2 / delta)));
  // Epsilon of `people` shuffled reports at delta; a crowd beyond the table is taken as its end.
  function shuffled(one, epsilon, people, delta) {
    const rows = tables.shuffled[one.name][tables.deltas.indexOf(delta)];
    const share = epsilon / hideable(people, delta);
    if (!(share > tables.grids.shares[0] * 0.999 && share < 1.001)) return NaN;
    const byCrowd = rows.map((row) => onGrid(tables.grids.shares, row, share));
    return Math.min(epsilon * Math.exp(onGrid(tables.grids.people, byCrowd, crowd(people))), epsilon);
  }
  const total = (one, epsilon, state) =>
    state.shuffle ? shuffled(one, epsilon, state.n, state.delta) : composed(one, epsilon, state.count, state);
  const lowest = (state) => (state.shuffle ? tables.grids.shares[0] * hideable(state.n, state.delta) : least);
  // What is wanted small, in the data's units: the standard deviation of the mean, or the error of the distribution.
  const errorOf = (one, epsilon, state) =>
    state.unit * (state.know === "distribution" ? distributionError(one, epsilon, state.n) : Math.sqrt(law(one, epsilon, state).worst / state.n));

  // To four digits, down or up.
  function toFour(value, round) {
    const unit = 10 ** (Math.floor(Math.log10(value)) - 3);
    return Number((round(value / unit + (round === Math.floor ? 1e-9 : -1e-9)) * unit).toPrecision(4));
  }
  const room = (state) => 1 - (state.shuffle ? 2e-3 : 4e-4); // More than a table's interpolation is off.

  // The optimum's reports are composed at the budgets of a list alone: the last that is right, or the first.
  function listed(one, state) {
    const found =
      state.goal === "accuracy"
        ? tables.optimalReports.find((e) => errorOf(one, e, state) <= state.target)
        : tables.optimalReports.findLast((e) => total(one, e, state) <= state.epsilon);
    return found ? { epsilon: found } : { why: "not within the budgets at which this page composes its reports" };
  }

  // Why a mechanism is none for this, if so.
  function unfitting(one, state) {
    if (one.whole && !state.whole) return "for whole numbers: say above that the statistic is one";
    if (one.whole && !(Number.isInteger(state.sensitivity) && state.sensitivity <= 1000)) return "for a sensitivity that is a whole number, in this page up to 1000";
    if (state.count > 1 && (one.once || (one.whole && state.sensitivity > 1))) return "this page composes no reports of it";
    if (state.have === "person" && state.know === "mean" && one.narrow)
      return one.name === "square-wave" ? "its reports are biased: for the distribution of the values alone" : "as narrow as tells most of the distribution of the values: for that alone";
    if (state.know === "distribution" && !one.narrow && !tables.distribution[one.name])
      return one.noise ? "is unbounded: dpkernels estimate reads distributions from bounded reports" : "not in this page: dpkernels tune --objective distribution has it";
    if (state.shuffle && !tables.shuffled[one.name])
      return one.noise ? "is unbounded, and no shuffler hides that" : "its crowds are not in this page: dpkernels tune --shuffle has them";
    return null;
  }

  // A mechanism's own epsilon for a budget or a target, or why there is none.
  function solve(one, state) {
    const [low, high] = [lowest(state), most(one, state)];
    const unfit = unfitting(one, state);
    if (unfit) return { why: unfit };
    if (one.name === "optimal" && state.count > 1) return listed(one, state);
    if (state.goal === "accuracy") {
      const error = (shrink) => errorOf(one, (low * high) / shrink, state);
      const shrink = largest(error, state.target, low, high);
      if (shrink === null) return { why: `not reached up to epsilon ${high} a report` };
      return { epsilon: Math.min(toFour((low * high) / shrink, Math.ceil), high) };
    }
    if (state.count === 1 && !state.shuffle)
      return state.epsilon <= high ? { epsilon: state.epsilon } : { why: `is in this page up to epsilon ${high}` };
    const found = largest((e) => total(one, e, state), state.epsilon * room(state), low, high);
    if (found === null) return { why: `epsilon ${low} a report would already be more than the budget` };
    return { epsilon: Math.max(low, toFour(found, Math.floor)) };
  }

  // Every mechanism for what the person has; the best first, and those that cannot.
  function ranked(state) {
    const rows = [];
    const refused = [];
    for (const one of Object.values(state.have === "person" ? PERSON : STATISTIC)) {
      const { epsilon, why } = solve(one, state);
      if (why) {
        refused.push({ one, why });
        continue;
      }
      const found = law(one, epsilon, state);
      const report = Math.sqrt(found.worst) * state.unit;
      rows.push({ one, epsilon, law: found, total: total(one, epsilon, state), report, error: errorOf(one, epsilon, state) });
    }
    const by = state.goal === "accuracy" ? (row) => row.total : (row) => row.error;
    const biased = (row) => Number(Boolean(row.law.mean));
    rows.sort((a, b) => by(a) - by(b) || a.error - b.error || biased(a) - biased(b) || a.report - b.report);
    return { rows, refused };
  }

  // Half widths of the intervals for a mean of n reports, in widths; `estimate_mean` has both.
  function meanIntervals(row, n, confidence) {
    const normal = normalQuantile((1 - confidence) / 2) * Math.sqrt(row.law.worst / n);
    if (row.law.mean) return {};
    if (!Number.isFinite(row.law.high)) return { normal };
    const odds = Math.log(2 / (1 - confidence));
    const error = Math.max(row.law.high, 1 - row.law.low) + 0.05 * (row.law.high - row.law.low);
    const third = (error * odds) / 3;
    return { normal, bernstein: (third + Math.sqrt(third ** 2 + 2 * n * row.law.worst * 1.001 * odds)) / n };
  }

  // Whether the page composes reports of this budget.
  const composable = (one, epsilon) =>
    one.name === "optimal" ? tables.optimalReports.includes(epsilon) : epsilon <= most(one, { count: 2 });

  return { ranked, meanIntervals, composable, composed, shuffled, total, errorOf, law, PERSON, STATISTIC };
}
