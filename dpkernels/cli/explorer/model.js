"use strict";
// The mechanisms as the page knows them. Lengths are in widths of the interval ("person") or in sensitivities
// ("statistic"); inputs of the interval are in [0, 1]. Densities are those of the docstrings; everything else is a sum over
// cells of a density, or is looked up in `tables`.

function makeModel(tables) {
  // ---------------------------------------------------------------- tables and roots
  // The cubic through the four nodes of a geometric grid about a value. Nodes beyond a jump are left out.
  function lookUp([first, last, count], values, value, jumps = []) {
    const place = (v) => ((count - 1) * Math.log(v / first)) / Math.log(last / first);
    const nodeAfter = (jump) => Math.ceil(place(jump));
    const from = Math.max(0, ...jumps.filter((jump) => jump <= value).map(nodeAfter));
    const end = Math.min(count, ...jumps.filter((jump) => jump > value).map(nodeAfter));
    const at = place(value);
    const start = Math.min(Math.max(Math.floor(at) - 1, from), end - 4);
    let sum = 0;
    for (let i = 0; i < 4; i++) {
      let weight = 1;
      for (let j = 0; j < 4; j++) if (j !== i) weight *= (at - start - j) / (i - j);
      sum += weight * values[start + i];
    }
    return sum;
  }
  // At a budget and a number of people, from a table by people and then by budgets.
  const lookUpForPeople = (rows, epsilon, n, name) =>
    lookUp(tables.grids.values, rows.map((row) => lookUp(tables.grids.distributed, row, epsilon, tables.jumps[name])), n);

  // The value furthest from `good`, towards `bad`, at which a condition holds; null if it does not hold at `good`.
  function furthest(holds, good, bad) {
    if (!holds(good)) return null;
    if (holds(bad)) return bad;
    for (let i = 0; i < 36; i++) {
      const middle = Math.sqrt(good * bad);
      if (holds(middle)) good = middle;
      else bad = middle;
    }
    return good;
  }

  // ---------------------------------------------------------------- the distribution of a report
  // A report for the true value t has a density (y, t), which jumps or bends at knots(t) alone, and the places y_j with
  // probability(j, t). Between two knots the density is summed over `parts` cells; one is exact where it is constant.
  // Neighbouring inputs are those of `pairs`.
  function distribution({ density, knots = () => [], parts = 1, places = [], probability, pairs = [[1, 0]], ...more }) {
    function cells(t, ends = knots(t)) {
      const sorted = Float64Array.from(ends).sort();
      const found = places.map((y, j) => ({ y, width: 0, mass: probability(j, t) }));
      for (let i = 1; i < sorted.length; i++) {
        const width = (sorted[i] - sorted[i - 1]) / parts;
        if (width * parts < 1e-12) continue;
        for (let k = 0; k < parts; k++) {
          const y = sorted[i - 1] + (k + 0.5) * width;
          found.push({ y, width, mass: width * density(y, t) });
        }
      }
      return found;
    }
    const sum = (all, value) => all.reduce((total, cell) => total + cell.mass * value(cell), 0);
    const mean = (t) => sum(cells(t), ({ y }) => y);
    function variance(t) {
      const all = cells(t);
      const centre = sum(all, ({ y }) => y);
      return sum(all, ({ y, width }) => (y - centre) ** 2 + width ** 2 / 12);
    }
    // The cells of two inputs side by side, as [p, q].
    let compared = null;
    const comparedPairs = () => (compared ??= pairs.map((pair) => pair.map((t) => Float64Array.from(cells(t, pair.flatMap(knots)), ({ mass }) => mass))));
    function delta(epsilon) {
      const factor = Math.exp(epsilon);
      const excess = ([p, q]) => p.reduce((sum, mass, i) => sum + Math.max(mass - factor * q[i], 0), 0);
      return Math.max(...comparedPairs().map(excess));
    }
    // The cells of two inputs by falling likelihood ratio, as [q, p] from the first cell to each.
    let tests = null;
    const bestTests = ([p, q]) => {
      const order = Array.from(p.keys()).sort((i, j) => p[j] * q[i] - p[i] * q[j]);
      let [mistaken, found] = [0, 0];
      return [[0, 0], ...order.map((i) => [(mistaken += q[i]), (found += p[i])])];
    };
    // The largest share of reports of one value that a test finds if it takes this share, > 0, of another value's for them.
    function power(rate) {
      tests ??= comparedPairs().map(bestTests);
      const found = (points) => {
        const i = points.findIndex(([q]) => q >= rate);
        if (i < 1) return 1;
        const [[q0, p0], [q1, p1]] = [points[i - 1], points[i]];
        return p0 + ((p1 - p0) * (rate - q0)) / (q1 - q0);
      };
      return Math.min(Math.max(...tests.map(found)), 1);
    }
    // Where the loss is epsilon, 0 or -epsilon: the probabilities of the three.
    function threeLosses() {
      const [[p, q]] = comparedPairs();
      let [plus, minus] = [0, 0];
      p.forEach((mass, i) => {
        if (mass > q[i] * (1 + 1e-9)) [plus, minus] = [plus + mass, minus + q[i]];
      });
      return { plus, minus, zero: 1 - plus - minus };
    }
    // The least distance from t that symmetric noise exceeds with a probability of at most alpha.
    function beyond(alpha) {
      let tail = 0;
      for (const { y, width, mass } of cells(0).sort((one, other) => other.y - one.y)) {
        if (tail + mass > alpha / 2) return y + width / 2 - (width * (alpha / 2 - tail)) / mass;
        tail += mass;
      }
      return 0;
    }
    let { worst } = more;
    const worstVariance = () => (worst ??= Math.max(variance(0.5), variance(1)));
    return { low: -Infinity, high: Infinity, cells, mean, variance, worstVariance, delta, power, threeLosses, beyond, ...more };
  }

  // ---------------------------------------------------------------- bounded reports
  const WINDOWS = {
    uniform: { area: 1, parts: 1, at: (z) => (z >= 0 && z <= 1 ? 1 : 0) },
    sine: { area: 2 / Math.PI, parts: 200, at: (z) => (z >= 0 && z <= 1 ? Math.sin(Math.PI * z) : 0) },
    triangle: { area: 1 / 2, parts: 200, at: (z) => Math.max(0, 1 - 2 * Math.abs(z - 0.5)) },
  };

  // level (1 + relative h((v - a)/m)) on [-1, 1] in v = scale (report - 1/2), where a moves with the input. Reports are
  // unbiased for one scale. With another one the window stands at the input itself.
  function windowed(windowName, m, relative, atInput = false) {
    const { area, parts, at } = WINDOWS[windowName];
    const level = 1 / (relative * area * m + 2);
    const scale = (2 - m) * (atInput ? 1 : area * relative * level * m);
    const start = (t) => (t - 0.5) * (2 - m) - m / 2;
    return {
      low: 0.5 - 1 / scale,
      high: 0.5 + 1 / scale,
      density: (y, t) => scale * level * (1 + relative * at(((y - 0.5) * scale - start(t)) / m)),
      knots: (t) => [-1, start(t), start(t) + m / 2, start(t) + m, 1].map((v) => 0.5 + v / scale),
      parts,
    };
  }
  // The best width and height of a mechanism's window for a budget.
  function bestWindow({ name, window }, epsilon) {
    const value = (column) => Math.exp(lookUp(tables.grids.parameters, column, epsilon, tables.jumps[name]));
    const [m, factor] = tables.windowed[name].map(value);
    return windowed(window, Math.min(m, 1.999999), factor * Math.expm1(epsilon));
  }
  const wang2019 = (epsilon) => windowed("uniform", 2 / (1 + Math.exp(epsilon / 2)), Math.expm1(epsilon));

  function duchi(epsilon) {
    const B = 0.5 / Math.tanh(epsilon / 2);
    const [low, high] = [0.5 - B, 0.5 + B];
    return { low, high, places: [low, high], probability: (j, t) => 0.5 + ((j ? 1 : -1) * (t - 0.5)) / (2 * B) };
  }
  // Piecewise with probability w, else two points.
  function hybrid(epsilon) {
    const [spread, points] = [wang2019(epsilon), duchi(epsilon)];
    if (epsilon <= tables.jumps.hybrid[0]) return points;
    const w = -Math.expm1(-epsilon / 2);
    return {
      ...spread,
      low: Math.min(spread.low, points.low), high: Math.max(spread.high, points.high),
      density: (y, t) => w * spread.density(y, t),
      places: points.places,
      probability: (j, t) => (1 - w) * points.probability(j, t),
    };
  }
  // The width of the piecewise mechanism that shows most of the distribution of n values, as 2/m, to the digits written.
  const narrowEta = (epsilon, n) => Number((2 / Math.exp(lookUpForPeople(tables.narrow.widths, epsilon, n))).toPrecision(6));
  function narrow(epsilon, { n }) {
    const eta = narrowEta(epsilon, n);
    return { ...windowed("uniform", 2 / eta, Math.expm1(epsilon)), own: { eta } };
  }
  function squareWave(epsilon, { n }) {
    const eta = narrowEta(epsilon, n);
    const half_width = Number((0.5 / (eta - 1)).toPrecision(6));
    return { ...windowed("uniform", 2 / eta, Math.expm1(epsilon), true), biased: true, own: { half_width } };
  }
  // The linear program's optimum: its error at any budget, its reports at the budgets of which the page has the table.
  function optimal(epsilon) {
    const [worst, half] = tables.optimum.map((column) => Math.exp(lookUp(tables.grids.optimum, column, epsilon)));
    const table = tables.drawn.find((one) => one.epsilon === epsilon);
    if (!table) return { low: 0.5 - half, high: 0.5 + half, worst, untabulated: true };
    const { rows } = table;
    const steps = rows.length - 1;
    const inputs = rows.map((_, i) => i / steps);
    return {
      worst,
      low: 0.5 + table.reports[0],
      high: 0.5 + table.reports.at(-1),
      places: table.reports.map((y) => 0.5 + y),
      probability(j, t) {
        const i = Math.min(Math.floor(t * steps + 1e-9), steps - 1);
        return rows[i][j] + (t * steps - i) * (rows[i + 1][j] - rows[i][j]);
      },
      pairs: inputs.flatMap((s) => inputs.map((t) => [s, t])),
    };
  }

  // ---------------------------------------------------------------- noise, for a sensitivity of 1
  const smooth = (height, reach) => ({ density: (y, t) => height(Math.abs(y - t)), knots: (t) => [t - reach, t, t + reach], parts: 1000 });

  const laplace = (epsilon) => ({ ...smooth((z) => (epsilon / 2) * Math.exp(-z * epsilon), 20 / epsilon), worst: 2 / epsilon ** 2 });
  function gaussian(epsilon, { delta }) {
    const mu = gaussianMu(epsilon, delta);
    const height = (z) => (mu * Math.exp((-mu * mu * z * z) / 2)) / Math.sqrt(2 * Math.PI);
    return { ...smooth(height, 8.5 / mu), worst: 1 / mu ** 2 };
  }
  function truncatedLaplace(epsilon, { delta }) {
    const bound = Math.log1p(Math.expm1(epsilon) / (2 * delta)) / epsilon;
    const mass = -Math.expm1(-bound * epsilon);
    const height = (z) => (z > bound ? 0 : (epsilon / (2 * mass)) * Math.exp(-z * epsilon));
    return { ...smooth(height, bound), low: -bound, high: bound };
  }
  // The height falls by q at gamma, gamma + 1, gamma + 2, ..
  function staircase(epsilon) {
    const gamma = 1 / (1 + Math.exp(epsilon / 2));
    const q = Math.exp(-epsilon);
    const top = (1 - q) / (2 * (gamma + q * (1 - gamma)));
    const falls = Array.from({ length: Math.ceil(20 / epsilon) + 1 }, (_, k) => k + gamma);
    const plus = 0.5 + top * gamma;
    return {
      density: (y, t) => top * q ** Math.floor(Math.abs(y - t) + 1 - gamma),
      knots: (t) => falls.flatMap((z) => [t - z, t + z]),
      threeLosses: () => ({ plus, minus: q * plus, zero: 1 - plus - q * plus }),
    };
  }
  // Laplace noise in whole numbers, in units of a sensitivity of D of them. Very fine steps are as good as none.
  function discreteLaplace(epsilon, { sensitivity: D }) {
    if (epsilon / D < 1e-3) return laplace(epsilon);
    const q = Math.exp(-epsilon / D);
    const reach = Math.ceil((20 * D) / epsilon);
    return {
      places: Array.from({ length: 2 * reach + D + 1 }, (_, j) => (j - reach) / D),
      probability: (j, t) => ((1 - q) / (1 + q)) * q ** Math.abs(j - reach - Math.round(t * D)),
    };
  }

  // ---------------------------------------------------------------- mechanisms
  const LAWS = {
    optimal, hybrid, duchi, laplace, staircase, gaussian,
    "piecewise-wang2019": wang2019, "piecewise-narrow": narrow, "square-wave": squareWave,
    "truncated-laplace": truncatedLaplace, "discrete-laplace": discreteLaplace,
  };
  const distributions = new Map();
  function distributionOf(one, epsilon, state) {
    const key = [one.name, epsilon, one.delta && state.delta, one.narrow && state.n, one.whole && state.sensitivity].join();
    if (distributions.size > 1000) distributions.clear();
    if (!distributions.has(key)) distributions.set(key, distribution(one.window ? bestWindow(one, epsilon) : LAWS[one.name](epsilon, state)));
    return distributions.get(key);
  }

  // ---------------------------------------------------------------- several reports, shuffled reports
  // The least epsilon of `count` reports with losses epsilon, 0 and -epsilon at delta: probabilities of k, k - 1, .. more
  // plus than minus, by the recurrence of the coefficients of (minus + zero x + plus x^2)^k, positive down to the middle.
  function composedThreeLosses({ plus, zero, minus }, epsilon, count, delta) {
    // `lower` is the sum under the neighbour, times e^((more - 1) epsilon): where the next probabilities begin to count.
    let [scale, before, now, upper, lower] = [count * Math.log(plus), 0, 1, 0, 0];
    for (let i = 0; i < count; i++) {
      const more = count - i;
      const p = now * Math.exp(scale);
      upper += p;
      lower = (lower + p) * Math.exp(-epsilon);
      if (upper - lower >= delta) return (more - 1) * epsilon + Math.log((upper - delta) / lower);
      const next = ((count - i) * zero * now + (2 * count - i + 1) * minus * before) / ((i + 1) * plus);
      [before, now] = [now, next];
      if (now > 1e150) {
        scale += Math.log(1e150);
        [before, now] = [before / 1e150, now / 1e150];
      }
    }
    return 0;
  }
  const ofDelta = (table, delta) => table[tables.deltas.indexOf(delta)];
  // Gaussian noise of standard deviation 1/mu.
  const gaussianMu = (epsilon, delta) => Math.exp(lookUp(tables.grids.gaussian, ofDelta(tables.gaussian, delta), epsilon));

  // Epsilon of `count` reports at delta, each of its own epsilon.
  function composed(one, epsilon, count, state) {
    if (count === 1) return epsilon;
    const { delta } = state;
    if (one.threeLosses) return composedThreeLosses(distributionOf(one, epsilon, state).threeLosses(), epsilon, count, delta);
    const mu = one.name === "gaussian" && gaussianMu(epsilon, delta) * Math.sqrt(count);
    if (mu) return furthest((e) => gaussianMu(e, delta) <= mu, ...tables.grids.gaussian);
    const row = ofDelta(tables.composed[one.name], delta)[tables.counts.indexOf(count)];
    const log = one.name === "optimal" ? row[tables.optimalReports.indexOf(epsilon)] : lookUp(tables.grids.reports, row, epsilon, tables.jumps[one.name]);
    return Math.min(epsilon * Math.exp(log), count * epsilon);
  }
  // The largest budget of a report that so many people hide; tables are by the share of it.
  const hideable = (people, delta) => Math.log(people / (8 * Math.log(2 / delta)));
  // Epsilon of `people` shuffled reports at delta.
  function shuffled(one, epsilon, people, delta) {
    const share = epsilon / hideable(people, delta);
    if (!(share > tables.grids.shares[0] * 0.999 && share < 1.001)) return NaN;
    const name = one.name === "hybrid" && epsilon <= tables.jumps.hybrid[0] ? "duchi" : one.name;
    const byPeople = ofDelta(tables.shuffled[name], delta).map((row) => lookUp(tables.grids.shares, row, share));
    return Math.min(epsilon * Math.exp(lookUp(tables.grids.people, byPeople, people)), epsilon);
  }
  const total = (one, epsilon, state) =>
    state.shuffle ? shuffled(one, epsilon, state.n, state.delta) : composed(one, epsilon, state.count, state);

  // ---------------------------------------------------------------- errors, and the search for a budget
  // What is wanted small, in the data's units: the standard deviation of the mean, or the expected error of the cdf.
  function errorOf(one, epsilon, state) {
    const { know, unit, n } = state;
    if (know !== "distribution") return unit * Math.sqrt(distributionOf(one, epsilon, state).worstVariance() / n);
    return unit * Math.exp(lookUpForPeople(one.narrow ? tables.narrow.errors : tables.distribution[one.name], epsilon, n, one.name));
  }

  // The smallest and the largest budget of a report.
  function range(one, state) {
    if (state.shuffle) return [tables.grids.shares[0], 1].map((share) => share * hideable(state.n, state.delta));
    const tabulated = state.count > 1 && one.name in tables.composed ? tables.grids.reports[1] : 20;
    return [0.01, Math.min(one.most ?? 20, tabulated, state.know === "distribution" ? tables.grids.distributed[1] : 20)];
  }
  // To four digits, down or up.
  function toFour(value, round) {
    const unit = 10 ** (Math.floor(Math.log10(value)) - 3);
    return Number((round(value / unit + (round === Math.floor ? 1e-9 : -1e-9)) * unit).toPrecision(4));
  }

  // Why a mechanism does not fit the question, if so.
  function unfitting({ whole, refused = {} }, { have, know, shuffle, count, whole: counts, sensitivity }) {
    if (whole && !(counts && Number.isInteger(sensitivity) && sensitivity <= 1000))
      return "for whole numbers, with a whole sensitivity up to 1000: say above that the statistic is one";
    const several = count > 1 && !(whole && sensitivity === 1);
    return (have === "person" && refused[know]) || (shuffle && refused.shuffle) || (several && refused.several) || null;
  }

  // A mechanism's own epsilon for a budget or a target, or why there is none.
  function solve(one, state) {
    const why = unfitting(one, state);
    if (why) return { why };
    const [low, high] = range(one, state);
    const accuracy = state.goal === "accuracy";
    const room = 1 - (state.shuffle ? 2e-3 : 4e-4); // More than a table's interpolation is off.
    const fits = accuracy ? (e) => errorOf(one, e, state) <= state.target : (e) => total(one, e, state) <= state.epsilon * room;
    let found;
    const listed = one.name === "optimal" && state.count > 1 && tables.optimalReports;
    if (listed) found = accuracy ? listed.find(fits) : listed.findLast(fits);
    else if (accuracy) found = furthest(fits, high, low);
    else if (state.count > 1 || state.shuffle) found = furthest(fits, low, high);
    else return state.epsilon <= high ? { epsilon: state.epsilon } : { why: `in this page only up to epsilon ${high}` };
    if (!found) return { why: `would need an epsilon per report outside ${toFour(low, Math.ceil)} to ${toFour(high, Math.floor)}, the range of this page` };
    return { epsilon: listed ? found : Math.min(Math.max(low, toFour(found, accuracy ? Math.ceil : Math.floor)), high) };
  }

  // Every mechanism for what the person has; the best first, and those that do not fit.
  function ranked(state) {
    const solved = tables[state.have].map((one) => ({ one, ...solve(one, state) }));
    const rows = solved.filter(({ why }) => !why).map(({ one, epsilon }) => {
      const law = distributionOf(one, epsilon, state);
      const report = Math.sqrt(law.worstVariance()) * state.unit;
      return { one, epsilon, law, total: total(one, epsilon, state), report, error: errorOf(one, epsilon, state) };
    });
    const by = state.goal === "accuracy" ? ({ total }) => total : ({ error }) => error;
    const biased = ({ law }) => Number(Boolean(law.biased));
    rows.sort((a, b) => by(a) - by(b) || a.error - b.error || biased(a) - biased(b) || a.report - b.report);
    return { rows, by, refused: solved.filter(({ why }) => why) };
  }

  // Half widths of the intervals for a mean of n unbiased reports, in widths; `estimate_mean` has both.
  function meanIntervals({ law }, n, confidence) {
    if (law.biased) return {};
    const normal = tables.normal[confidence] * Math.sqrt(law.worstVariance() / n);
    if (!Number.isFinite(law.high)) return { normal };
    const odds = Math.log(2 / (1 - confidence));
    const error = Math.max(law.high, 1 - law.low) + 0.05 * (law.high - law.low);
    const third = (error * odds) / 3;
    return { normal, bernstein: (third + Math.sqrt(third ** 2 + 2 * n * law.worstVariance() * 1.001 * odds)) / n };
  }

  // Whether the page composes reports of this budget.
  const composable = (one, epsilon, state) =>
    !unfitting(one, { ...state, count: 2 }) && (one.name === "optimal" ? tables.optimalReports.includes(epsilon) : epsilon <= range(one, { ...state, count: 2 })[1]);

  // ---------------------------------------------------------------- categories
  // Whether there may be so many blocks: a prime, or a power of one up to 256.
  function isField(g) {
    let prime = 2;
    while (g % prime && prime * prime <= g) prime++;
    if (g % prime) return true;
    let rest = g;
    while (rest % prime === 0) rest /= prime;
    return rest === 1 && (g === prime || g <= 256);
  }

  // The mechanisms for one of d categories, the least error first, which is n times the expected sum of squared errors.
  function categories(epsilon, d) {
    const [e, E] = [Math.exp(epsilon), Math.exp(-epsilon)];
    const error = (p, q) => (p * (1 - p) + (d - 1) * q * (1 - q)) / (p - q) ** 2;
    const ofSets = (k) => {
      const p = k / (k + (d - k) * E);
      return error(p, (k - p) / (d - 1));
    };
    const sizes = [Math.floor, Math.ceil].map((round) => Math.min(Math.max(round(d / (e + 1)), 1), d - 1));
    const size = ofSets(sizes[0]) <= ofSets(sizes[1]) ? sizes[0] : sizes[1];
    const ofBlocks = (g) => {
      let [points, p] = [g, 1 / (1 + (g - 1) * E)];
      while (points < d) points *= g;
      const shared = (points / g - 1) / (points - 1);
      return { blocks: g, error: error(p, shared * p + (1 - shared) * E * p), bits: Math.log2(((points - 1) / (g - 1)) * g) };
    };
    const best = Math.min(e + 1, d, (1 << 20) - 1000);
    const numbers = [];
    for (let [g, found] = [Math.floor(best), 0]; g >= 2 && found < 3; g--) if (isField(g)) found = numbers.push(g);
    const below = numbers.length;
    for (let g = Math.floor(best) + 1; numbers.length < below + 3; g++) if (isField(g)) numbers.push(g);
    let single = d;
    while (d <= 256 && !isField(single)) single++;
    if (d <= 256) numbers.push(single);
    const blocks = numbers.map(ofBlocks).reduce((a, b) => (b.error < a.error ? b : a));
    const rows = [{ name: "block-response", ...blocks }, { name: "randomised-response", error: ofSets(1), bits: Math.log2(d) }];
    if (size > 1 && d <= 1 << 16) rows.push({ name: "subset-selection", size, error: ofSets(size), bits: 8 * Math.ceil(d / 8) });
    return { least: ofSets(size), rows: rows.sort((a, b) => a.error - b.error) };
  }

  return { ranked, meanIntervals, categories, composable, composed, shuffled, total, errorOf, distributionOf };
}
