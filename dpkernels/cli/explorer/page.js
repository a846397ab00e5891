// The page: state from the controls and the address, results into the page.

(() => {
  const tables = JSON.parse(document.getElementById("tables").textContent);
  const model = makeModel(tables);
  const form = document.getElementById("controls");
  const control = form.elements;
  const $ = (id) => document.getElementById(id);
  const DEFAULTS = {
    have: "person", know: "mean", whole: "false", lower: "0", upper: "100", n: "1000", sensitivity: "1", count: "1", shuffle: "false", goal: "budget",
    epsilon: "1", target: "1", delta: "1e-6", confidence: "0.95", mechanism: "", input: "0.3",
  };
  const COUNTS = [1, ...tables.counts];
  const NUMBERS = ["lower", "upper", "n", "sensitivity", "epsilon", "target"];
  const python = (value) => {
    if (Object.is(value, -0)) return "0";
    return value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential() : String(value);
  };
  const decimal = (value) => (Number.isInteger(value) ? `${python(value)}.0`.replace(/(e.*)\.0$/, "$1") : python(value));
  const escape = (text) => text.replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);

  // Four digits.
  function shown(value) {
    if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
    if (value === 0) return "0";
    const size = Math.abs(value);
    const text = size >= 1e6 || size < 1e-3 ? value.toExponential(3).replace("e+", "e") : String(Number(value.toPrecision(size >= 1000 ? 6 : 4)));
    return text.replace("-", "−").replace("e−", "e-").replace(/e(−)/, "e-");
  }
  const percent = (share) => `${Number((100 * share).toPrecision(4))} %`;
  const facts = (pairs) => pairs.map(([name, value, id]) => `<dt>${name}</dt><dd${id ? ` id="${id}"` : ""}>${value}</dd>`).join("");

  let chosen = "";
  let address = null;

  // ---------------------------------------------------------------- state

  function read() {
    const state = {
      have: control.have.value,
      goal: control.goal.value,
      know: control.have.value === "person" ? control.know.value : "mean",
      whole: control.have.value === "statistic" && control.whole.checked,
      count: COUNTS[Number(control.count.value)],
      delta: Number(control.delta.value),
      confidence: Number(control.confidence.value),
      input: Number(control.input.value),
    };
    for (const name of NUMBERS) state[name] = control[name].value.trim() === "" ? NaN : Number(control[name].value);
    const local = state.have === "person";
    state.shuffle = local && state.count === 1 && control.shuffle.checked;
    state.unit = local ? state.upper - state.lower : state.sensitivity;
    state.people = state.n;
    if (!local) state.n = 1;
    return state;
  }

  // What is wrong, by control.
  function problem(state) {
    const local = state.have === "person";
    const width = state.upper - state.lower;
    if (local && !Number.isFinite(state.lower)) return ["lower", "The smallest value must be a number."];
    if (local && !(Number.isFinite(state.upper) && width > 0)) return ["upper", "The largest value must be above the smallest."];
    if (local && !(state.n >= 1 && state.n <= 1e12 && Number.isInteger(state.n))) return ["n", "People must be a whole number, 1 to 10^12."];
    if (state.shuffle && state.n < tables.people[0]) return ["n", `A shuffler needs a crowd: this page has ${tables.people[0]} people or more.`];
    if (state.know === "distribution" && !(state.n >= tables.grids.values[0] && state.n <= tables.grids.values[1]))
      return ["n", "For a distribution this page has 100 to 10^8 people."];
    if (!local && !(state.sensitivity >= 1e-100 && state.sensitivity <= 1e100)) return ["sensitivity", "The sensitivity must be a positive number."];
    if (state.goal === "budget" && !(state.epsilon >= 0.01 && state.epsilon <= 20)) return ["epsilon", "Epsilon must be 0.01 to 20."];
    if (state.goal === "accuracy" && !(state.target > 0 && state.target < 1e300)) return ["target", "The accuracy must be a positive number."];
    return null;
  }

  function write(values) {
    const all = { ...DEFAULTS, ...values };
    for (const name of ["have", "goal", "know"]) {
      control[name].value = all[name];
      if (!control[name].value) control[name].value = DEFAULTS[name];
    }
    for (const name of NUMBERS) control[name].value = all[name];
    control.count.value = Math.max(0, COUNTS.indexOf(Number(all.count)));
    for (const name of ["shuffle", "whole"]) control[name].checked = all[name] === "true";
    for (const name of ["delta", "confidence"]) {
      control[name].value = String(Number(all[name]));
      if (control[name].selectedIndex < 0) control[name].value = String(Number(DEFAULTS[name]));
    }
    control.input.value = all.input;
    chosen = all.mechanism;
    slide();
  }
  const fromAddress = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  function toAddress(state) {
    const now = {
      ...Object.fromEntries(NUMBERS.map((name) => [name, control[name].value])),
      have: state.have, know: control.know.value, whole: String(control.whole.checked), count: String(state.count), shuffle: String(control.shuffle.checked), goal: state.goal,
      delta: control.delta.value, confidence: control.confidence.value, mechanism: chosen, input: control.input.value,
    };
    const differs = Object.entries(now).filter(([name, value]) => value !== (["delta", "confidence"].includes(name) ? String(Number(DEFAULTS[name])) : DEFAULTS[name]));
    clearTimeout(address); // Browsers refuse hundreds of changes a second.
    address = setTimeout(() => history.replaceState(null, "", `#${new URLSearchParams(differs)}`), 200);
  }
  function slide() {
    if (control.epsilon.value > 0) control.slider.value = Math.log10(control.epsilon.value);
  }

  // ---------------------------------------------------------------- the page

  function update() {
    const state = read();
    const wrong = problem(state);
    for (const name of NUMBERS) control[name].toggleAttribute("aria-invalid", false);
    if (wrong) control[wrong[0]].setAttribute("aria-invalid", "true");
    $("problem").hidden = !wrong;
    $("problem").textContent = wrong ? wrong[1] : "";
    $("found").hidden = Boolean(wrong);
    enable(state);
    toAddress(state);
    if (!wrong) draw(state);
  }

  function enable(state) {
    for (const part of document.querySelectorAll("[data-for]")) part.hidden = ![state.have, state.goal].includes(part.dataset.for);
    const local = state.have === "person";
    control.shuffle.disabled = state.count > 1;
    control.count.disabled = local && state.shuffle;
    $("count-shown").textContent = String(state.count);
    control.count.setAttribute("aria-valuetext", `${state.count} releases`);
    control.slider.setAttribute("aria-valuetext", `epsilon ${control.epsilon.value}`);
    const pure = local && state.count === 1 && !state.shuffle;
    control.delta.disabled = pure;
    $("delta-help").textContent = pure ? "Not needed: these reports are private with delta 0." : "The probability that more than epsilon is revealed is about this small.";
    $("target-label").textContent = measures(state)[1] ?? "Standard deviation of the released value";
  }

  // The error of a report, and for people that of what the reports are for.
  function measures(state) {
    if (state.have === "statistic") return ["Standard deviation of the released value"];
    const error = state.know === "mean" ? "Standard deviation of the mean of all reports" : "Expected error of the distribution";
    return ["Standard deviation of a report, worst input", error];
  }

  // Parts of the page that what was moved does not change stay as they are.
  const made = {};
  function unless(part, key, make) {
    const now = JSON.stringify(key);
    if (made[part] !== now) make();
    made[part] = now;
  }
  let last = { key: "", found: null };
  function ranked(state) {
    const key = JSON.stringify({ ...state, input: 0, confidence: 0 });
    if (last.key !== key) last = { key, found: model.ranked(state) };
    return last;
  }
  const widths = {};
  function measure() {
    for (const id of ["report-chart", "profile-chart", "growth-chart"]) widths[id] = $(id).clientWidth;
  }

  function draw(state) {
    const { key, found: { rows, refused } } = ranked(state);
    const row = rows.find((one) => one.one.name === chosen) ?? rows[0];
    unless("ranking", [key, row?.one.name], () => ranking(state, rows, refused, row));
    for (const id of ["report-title", "interval-title", "profile-title", "do-title"]) $(id).closest("section").hidden = !row;
    $("growth-title").closest("section").hidden = !row;
    if (!row) {
      $("answer").textContent = "No mechanism here does that: the reasons are below.";
      return;
    }
    unless("answer", [key], () => answer(state, rows));
    if (!widths["report-chart"]) measure();
    reportSection(state, row);
    intervals(state, row);
    const drawn = [row.one.name, row.epsilon, state.delta, state.unit, row.one.narrow ? state.n : 0];
    unless("profile", [drawn, widths["profile-chart"]], () => profileSection(row));
    unless("growth", [drawn, state.shuffle, state.shuffle ? state.n : state.count, widths["growth-chart"]], () => growth(state, row));
    lines(state, row);
    covers(state, row);
  }

  function answer(state, rows) {
    const [best] = rows;
    const together = state.shuffle ? "shuffled, epsilon" : state.count > 1 ? `${state.count} releases together, epsilon` : "epsilon";
    const people = state.n.toLocaleString("en");
    const mean = state.have === "person" ? `, of the mean of ${people} reports ${shown(best.error)}` : "";
    const error = state.know === "mean" ? `standard deviation of a report ${shown(best.report)}${mean}` : `expected error of the distribution of ${people} values ${shown(best.error)}`;
    $("answer").textContent =
      `${best.one.name} ${state.goal === "budget" ? "has the least error" : "needs the least budget"}: ${error}; ${together} ${shown(best.total)}.`;
  }

  function ranking(state, rows, refused, row) {
    const local = state.have === "person";
    const several = state.count > 1 || state.shuffle;
    const heads = ["Mechanism", ...measures(state)];
    heads.push(several ? "Epsilon of one report" : "Epsilon");
    if (several) heads.push(state.shuffle ? "shuffled" : "together");
    heads.push("Reports lie in");
    const table = $("ranking");
    table.tHead.rows[0].innerHTML = heads.map((text) => `<th scope="col">${text}</th>`).join("");
    const measure = state.goal === "accuracy" ? (one) => one.total : (one) => one.error;
    const most = Math.max(...rows.map(measure));
    const focused = document.activeElement?.name === "mechanism";
    table.tBodies[0].innerHTML = rows
      .map((one) => {
        const cells = [shown(one.report)];
        if (local) cells.push(shown(one.error));
        cells.push(shown(one.epsilon));
        if (several) cells.push(shown(one.total));
        cells.push(Number.isFinite(one.law.high) ? reach(state, one) : "any number");
        const is = one === row;
        const label = `<label><input type="radio" name="mechanism" value="${one.one.name}"${is ? " checked" : ""}>${one.one.name}</label>`;
        const bar = `<span class="bar" style="width:${((100 * measure(one)) / most).toFixed(1)}%;max-width:calc(100% - 1.55rem)"></span>`;
        return `<tr data-mechanism="${one.one.name}"${is ? ' class="chosen"' : ""}><th scope="row">${label}${bar}</th>${cells.map((c) => `<td>${c}</td>`).join("")}</tr>`;
      })
      .join("");
    if (focused) table.querySelector("input:checked")?.focus();
    const error = state.know === "mean" ? "standard deviation" : "error of the distribution, the mean distance of its cdf, in the values' units";
    $("measure").textContent = `Bars: ${state.goal === "budget" ? error : "epsilon"}.`;
    $("refused").hidden = refused.length === 0;
    $("refused").open ||= rows.length === 0;
    $("refused").firstElementChild.textContent = `Not in the list: ${refused.length}`;
    $("refused").lastElementChild.innerHTML = refused.map(({ one, why }) => `<li>${one.name}: ${escape(why)}</li>`).join("");
  }
  const report = (state, y) => (state.have === "person" ? state.lower + y * state.unit : y * state.unit);
  const reach = (state, row) => `${shown(report(state, row.law.low))} to ${shown(report(state, row.law.high))}`;

  // Of the optimum at a budget whose table the page does not hold.
  function elsewhere(chart) {
    $(chart).innerHTML = `<p class='help'>The page draws the optimum at epsilon ${tables.drawn.map((one) => one.epsilon).join(", ")}; the commands below compute it at any other.</p>`;
    return null;
  }

  function reportSection(state, row) {
    const { law } = row;
    $("report-facts").hidden = $("report-note").hidden = law.untabulated;
    if (law.untabulated) return elsewhere("report-chart");
    const local = state.have === "person";
    const t = local ? state.input : 0;
    const density = law.density(t);
    const atoms = law.atoms(t);
    const seen = [...density, ...atoms].map(([y]) => y);
    const range = local && Number.isFinite(law.high) ? [law.low, law.high] : [Math.min(...seen, 0), Math.max(...seen, local ? 1 : 0)];
    const room = 0.03 * (range[1] - range[0]);
    const data = (y) => report(state, y);
    const truth = data(t);
    const mean = law.mean ? data(law.mean(t)) : truth;
    const deviation = Math.sqrt(law.variance(t)) * state.unit;
    frameRange = [range[0] - room, range[1] + room];
    charts.fit(widths["report-chart"]);
    $("report-chart").innerHTML = charts.report({
      title: `Law of a report of ${row.one.name} for the true value ${shown(truth)}: mean ${shown(mean)}, standard deviation ${shown(deviation)}`,
      density: density.map(([y, f]) => [data(y), f]),
      atoms: atoms.map(([y, p]) => [data(y), p]),
      truth,
      range: frameRange.map(data),
      inputs: local ? [data(0), data(1)] : null,
    });
    control.input.closest("label").hidden = !local;
    $("input-shown").textContent = shown(truth);
    control.input.setAttribute("aria-valuetext", `true value ${shown(truth)}`);
    $("report-facts").innerHTML = facts([
      ["Mean of the report", `${shown(mean)} (${law.mean ? "biased" : "unbiased"})`, "report-mean"],
      [local ? "Standard deviation at this input" : "Standard deviation", shown(deviation), "deviation"],
    ]);
    const notes = [];
    if (local) notes.push("Drag on the picture, or use the slider. Shaded: where true values lie.");
    else notes.push("The true value is drawn at 0; noise is the same for any other.");
    if (atoms.length) notes.push(density.length ? "Stems are probabilities of single reports, on a scale of their own." : "Only these reports are possible: stems are their probabilities.");
    $("report-note").textContent = notes.join(" ");
  }
  let frameRange = [0, 1];

  function intervals(state, row) {
    const level = `${100 * state.confidence} %`;
    if (state.have === "person") {
      const { normal, bernstein } = model.meanIntervals(row, state.n, state.confidence);
      const items = [];
      if (state.know === "distribution") items.push([`Distribution of ${state.n.toLocaleString("en")} values, expected error of its cdf`, shown(row.error), "distribution"]);
      if (normal) items.push([`Mean of ${state.n.toLocaleString("en")} values, ${level}, for large n`, `± ${shown(normal * state.unit)}`, "normal"]);
      if (bernstein) items.push([`The same, certain at any n (Bernstein)`, `± ${shown(bernstein * state.unit)}`, "bernstein"]);
      $("intervals").innerHTML = facts(items);
    } else {
      const items = [[`Released value, ${level} of releases within`, `± ${shown(row.law.beyond(1 - state.confidence) * state.unit)}`, "normal"]];
      $("intervals").innerHTML = facts(items);
    }
  }

  function profileSection(row) {
    const { law, epsilon } = row;
    $("profile").closest("details").hidden = law.untabulated;
    if (law.untabulated) return elsewhere("profile-chart");
    const end = row.law.mu ? epsilon * 1.5 : epsilon;
    const few = row.one.name === "optimal" ? 24 : 60;
    const points = [];
    for (let i = 0; i <= few; i++) {
      const e = end * (1 - (1 - i / few) ** 3) * (1 - 1e-9); // Denser towards the end, where delta falls.
      const delta = law.profile(e);
      if (delta > 1e-13) points.push([e, delta]);
    }
    const lowest = Math.min(...points.map(([, d]) => d), 1e-2);
    charts.fit(widths["profile-chart"]);
    $("profile-chart").innerHTML = charts.curves({
      title: `Delta of one report of ${row.one.name} against epsilon, from ${shown(law.profile(0))} at epsilon 0, falling to ${law.mu || row.one.delta ? "ever smaller values" : `0 at epsilon ${shown(end)}`}`,
      lines: [["line", points]],
      xRange: [0, end],
      yRange: [Math.max(10 ** Math.floor(Math.log10(lowest)), 1e-13), 1],
      xName: "epsilon",
      yName: "delta",
    });
    $("profile").tBodies[0].innerHTML = [0, 0.25, 0.5, 0.75, 0.9]
      .map((share) => `<tr><th scope="row">${shown(share * epsilon)}</th><td>${shown(law.profile(share * epsilon))}</td></tr>`)
      .join("");
  }

  function growth(state, row) {
    const { one, epsilon } = row;
    const alone = one.once || (one.whole && state.sensitivity > 1) || !(state.shuffle || model.composable(one, epsilon));
    $("growth-title").textContent = state.shuffle ? "Epsilon against the crowd" : "Epsilon of several releases";
    $("growth-of").textContent = state.shuffle ? "People" : "Releases";
    const numbers = $("growth").tBodies[0];
    $("growth").closest("details").hidden = Boolean(alone);
    if (alone) {
      $("growth-chart").innerHTML = `<p class='help'>This page composes no reports of ${one.name} at this epsilon: <code>accountants.guarantee(m).repeat(k)</code> does.</p>`;
      return;
    }
    const at = state.shuffle ? tables.people : COUNTS;
    const value = (n) => (state.shuffle ? model.shuffled(one, epsilon, n, state.delta) : model.composed(one, epsilon, n, state));
    const points = at.map((n) => [n, value(n)]).filter(([, e]) => e > 0);
    const added = state.shuffle ? at.map((n) => [n, epsilon]) : at.map((n) => [n, n * epsilon]);
    const ends = [...points, ...added].map(([, e]) => e);
    const now = state.shuffle ? Math.min(state.n, at.at(-1)) : state.count;
    charts.fit(widths["growth-chart"]);
    $("growth-chart").innerHTML = charts.curves({
      title: `${one.name}: epsilon at delta ${python(state.delta)}, ${points.map(([n, e]) => `${shown(e)} for ${n}`).join(", ")}`,
      lines: [["other", added], ["line", points]],
      dot: [now, value(now)],
      xLog: true,
      xRange: [at[0], at.at(-1)],
      yRange: [Math.min(...ends) / 1.3, Math.max(...ends) * 1.3],
      xName: state.shuffle ? "people (dashed: without the shuffler)" : "releases (dashed: budgets added up)",
      yName: `epsilon at delta ${python(state.delta)}`,
    });
    numbers.innerHTML = points.map(([n, e]) => `<tr><th scope="row">${n.toLocaleString("en")}</th><td>${shown(e)}</td></tr>`).join("");
  }

  // ---------------------------------------------------------------- what to run

  function lines(state, row) {
    const { one, epsilon } = row;
    const local = state.have === "person";
    const given = { epsilon };
    if (one.delta) given.delta = state.delta;
    if (local && !one.noise) Object.assign(given, { lower: state.lower, upper: state.upper });
    else given.sensitivity = state.unit;
    Object.assign(given, one.own?.(epsilon, state));
    const call = one.python(Object.entries(given).map(([name, value]) => `${name}=${python(value)}`).join(", "));
    const several = state.count > 1 || state.shuffle;
    const accounting = several || call.startsWith("accountants");
    const text = ["import numpy as np", "", ...(accounting ? ["import accountants"] : []), "import dpkernels as dpk", ""];
    const value = local ? `np.full(1000, ${decimal(state.lower + state.input * state.unit)})` : "np.array([100.0])";
    text.push(`values = ${value}  # yours${local ? `: one per person, each in [${python(state.lower)}, ${python(state.upper)}]` : ": the true value"}`);
    text.push(`m = ${call}`, "reports = dpk.perturb(values, m)  # exact, new noise every time");
    if (state.know === "distribution") text.push("print(dpk.estimate(reports, m).histogram(4).shares.value.tolist())");
    else if (local && !one.noise) text.push(`print(dpk.estimate_mean(reports, m, confidence=${state.confidence}))`);
    else text.push(local ? "print(reports.mean())" : "print(reports)");
    if (!row.law.mean) text.push(`print(m.worst_variance**0.5)  # standard deviation of a report: ${plain(row.report)}`);
    if (state.count > 1) text.push(`print(accountants.guarantee(m).repeat(${state.count}).epsilon(${python(state.delta)}))  # of ${state.count} releases: ${plain(row.total)}`);
    if (state.shuffle) text.push(`print(accountants.shuffled(m, ${state.n}).epsilon(${python(state.delta)}))  # of the shuffled reports: ${plain(row.total)}`);
    $("python").textContent = text.join("\n");

    const options = Object.entries(given).map(([name, v]) => `--${name.replace("_", "-")} ${python(v)}`).join(" ");
    const mechanism = one.command ?? one.name;
    const shell = [
      `dpkernels perturb values.csv private.csv --column value --mechanism ${mechanism} ${options}${state.shuffle ? " --shuffle-rows" : ""}`,
      `dpkernels account ${mechanism} ${options}${state.count > 1 ? ` --reports ${state.count} --at-delta ${python(state.delta)}` : ""}${state.shuffle ? ` --shuffle ${state.n} --at-delta ${python(state.delta)}` : ""}`,
    ];
    if (state.know === "distribution") shell.splice(1, 0, "dpkernels estimate private.csv --column value");
    $("command").textContent = shell.join("\n");
  }
  const plain = (value) => shown(value).replaceAll("−", "-");

  // Sentences of the template, and the numbers in them.
  function covers(state, row) {
    const local = state.have === "person";
    const holds = { shuffle: state.shuffle, local: local && !state.shuffle, person: local, statistic: !local, several: state.count > 1, one: state.count === 1, delta: row.one.delta, noise: row.one.noise };
    for (const item of document.querySelectorAll("[data-when]")) item.hidden = !holds[item.dataset.when];
    const numbers = { lower: shown(state.lower), upper: shown(state.upper), n: state.n.toLocaleString("en"), sensitivity: shown(state.sensitivity), count: state.count, epsilon: shown(row.epsilon), total: shown(row.total), delta: python(state.delta) };
    for (const place of document.querySelectorAll("[data-number]")) place.textContent = numbers[place.dataset.number];
  }

  // ---------------------------------------------------------------- events

  async function copy(id) {
    const text = $(id).textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    $("copied").textContent = "Copied.";
    setTimeout(() => ($("copied").textContent = ""), 2000);
  }

  function drag(event) {
    if (read().have !== "person" || (event.type === "pointermove" && !event.buttons)) return;
    charts.fit(widths["report-chart"]);
    const share = charts.share(event.clientX, $("report-chart").getBoundingClientRect());
    const t = frameRange[0] + share * (frameRange[1] - frameRange[0]);
    control.input.value = Math.min(Math.max(t, 0), 1);
    update();
  }

  control.count.max = COUNTS.length - 1;
  control.delta.innerHTML = tables.deltas.map((d) => `<option value="${d}">${d.toExponential(0)}</option>`).join("");
  document.addEventListener("input", (event) => {
    const { name } = event.target;
    if (name === "slider") control.epsilon.value = Number((10 ** control.slider.value).toPrecision(3));
    if (name === "epsilon") slide();
    if (name === "mechanism") chosen = event.target.value;
    update();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const kind of ["pointerdown", "pointermove"]) $("report-chart").addEventListener(kind, drag);
  for (const button of document.querySelectorAll("[data-copy]")) button.addEventListener("click", () => copy(button.dataset.copy));
  addEventListener("resize", () => {
    measure();
    update();
  });
  addEventListener("hashchange", () => {
    write(fromAddress());
    update();
  });
  write(fromAddress());
  update();
})();
