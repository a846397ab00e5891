// The page: state from the controls and the address, results into the template.

(() => {
  const tables = JSON.parse(document.getElementById("tables").textContent);
  const model = makeModel(tables);
  const form = document.getElementById("controls");
  const control = form.elements;
  const $ = (id) => document.getElementById(id);
  const COUNTS = [1, ...tables.counts];
  control.count.innerHTML = COUNTS.map((count) => `<option>${count}</option>`).join("");
  control.delta.innerHTML = tables.deltas.map((delta) => `<option value="${delta}"${delta === 1e-6 ? " selected" : ""}>${delta.toExponential(0)}</option>`).join("");

  // ---------------------------------------------------------------- numbers as text
  const python = (value) => (value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential() : String(value));
  const whole = (value) => value.toLocaleString("en");
  // Four digits.
  function shown(value) {
    if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
    if (value === 0) return "0";
    const size = Math.abs(value);
    const text = size >= 1e6 || size < 1e-3 ? size.toExponential(3).replace("e+", "e") : String(Number(size.toPrecision(size >= 1000 ? 6 : 4)));
    return value < 0 ? `−${text}` : text;
  }
  // The roles stay where a narrow screen shows rows as blocks, and cells the names of their columns.
  const rowOf = (titles, head, cells, attributes = "") => `<tr role="row"${attributes}><th role="rowheader" scope="row">${head}</th>${cells.map((cell, k) => `<td role="cell" data-column="${titles[k]}">${cell}</td>`).join("")}</tr>`;
  const htmlRows = (rows) => rows.map(([head, value]) => `<tr><th scope="row">${head}</th><td>${value}</td></tr>`).join("");

  // What does not change stays as it is, and is not read out again.
  const written = new Map();
  function put(element, html) {
    if (written.get(element) !== html) element.innerHTML = html;
    written.set(element, html);
  }

  // ---------------------------------------------------------------- state
  let [chosen, address, frame] = ["", null, [0, 1]];

  function read() {
    const { have, know, goal } = Object.fromEntries(new FormData(form));
    const number = (name) => Number(control[name].value);
    const names = ["lower", "upper", "n", "sensitivity", "count", "epsilon", "target", "delta", "confidence", "input", "categories"];
    const state = { have, know, goal, ...Object.fromEntries(names.map((name) => [name, number(name)])) };
    const person = have === "person";
    if (!person) Object.assign(state, { n: 1, know: "mean" });
    state.shuffle = person && state.count === 1 && control.shuffle.checked;
    state.whole = !person && control.whole.checked;
    state.unit = person ? state.upper - state.lower : state.sensitivity;
    return state;
  }
  function fromAddress() {
    form.reset();
    const values = new URLSearchParams(location.hash.slice(1));
    for (const [name, value] of values) {
      const one = control[name];
      if (one?.type === "checkbox") one.checked = value === "true";
      else if (one?.type === "number" && Number.isNaN(Number(value))) one.value = "";
      else if (one) one.value = one.options ? Number(value) : value;
      if (one?.selectedIndex < 0) one.selectedIndex = 0;
    }
    chosen = values.get("mechanism") ?? "";
    slide();
    update();
  }
  function toAddress() {
    const values = new URLSearchParams(new FormData(form));
    values.delete("slider");
    if (chosen) values.set("mechanism", chosen);
    clearTimeout(address); // Browsers refuse hundreds of changes a second.
    address = setTimeout(() => history.replaceState(null, "", `#${values}`), 200);
  }
  function slide() {
    if (control.epsilon.value > 0) control.slider.value = Math.log10(control.epsilon.value);
    control.slider.setAttribute("aria-valuetext", `epsilon ${control.epsilon.value}`);
  }

  // The visible number that is wrong, and what is allowed.
  function problem(state) {
    const people = state.shuffle ? tables.grids.people : state.know === "distribution" ? tables.grids.values : [1, 1e12];
    [control.n.min, control.n.max] = people;
    const wrong = [...form.querySelectorAll("input[type=number]")].find((one) => !one.closest("[hidden]") && !one.checkValidity());
    if (wrong) {
      const [least, most] = [wrong.min, wrong.max].map((end) => (end > 1 && end < 1e15 ? whole(Number(end)) : end));
      return [wrong, `${wrong.labels[0].textContent.trim()}: must be a ${wrong.step === "1" ? "whole " : ""}number from ${least} to ${most}.`];
    }
    return state.unit > 0 ? null : [control.upper, "Largest value: must be above the smallest value."];
  }

  // ---------------------------------------------------------------- the page
  // Shows the parts of the template whose conditions hold, and fills in their values.
  function fill(holds, values = {}) {
    for (const part of document.querySelectorAll("[data-when]")) part.hidden = !part.dataset.when.split(" ").every((name) => holds[name]);
    for (const place of document.querySelectorAll("[data-value]")) if (place.dataset.value in values) put(place, values[place.dataset.value]);
  }

  function update() {
    const state = read();
    const { have, goal, know, count, shuffle } = state;
    const approximate = count > 1 || shuffle || have === "statistic";
    const holds = { [have]: true, [goal]: true, [know]: true, several: count > 1, one: count === 1, shuffle, "no-shuffle": !shuffle, approximate, pure: !approximate };
    const wanted = have === "statistic" ? "Standard deviation of the released value" : know === "mean" ? "Standard deviation of the mean of all reports" : "Expected error of the distribution";
    fill(holds, { wanted });
    control.shuffle.disabled = count > 1;
    control.count.disabled = shuffle;
    control.delta.disabled = !approximate;
    const wrong = problem(state);
    for (const one of form.querySelectorAll("input[type=number]")) one.toggleAttribute("aria-invalid", false);
    wrong?.[0].setAttribute("aria-invalid", "true");
    $("problem").hidden = !wrong;
    put($("problem"), wrong ? wrong[1] : "");
    $("found").hidden = Boolean(wrong);
    toAddress();
    if (!wrong) draw(state, holds, wanted);
  }

  function categoriesTable({ epsilon, categories, n }) {
    const { least, rows } = model.categories(epsilon, categories);
    const cells = rows.map(({ name, error, bits }) => [name, shown(Math.sqrt(error / n)), `${shown(100 * Math.max(error / least - 1, 0))}\u00a0%`, shown(bits)]);
    const titles = [...$("categories").tHead.rows[0].cells].slice(1).map((cell) => cell.textContent);
    put($("categories").tBodies[0], cells.map(([head, ...row]) => rowOf(titles, head, row)).join(""));
  }

  function draw(state, holds, wanted) {
    categoriesTable(state);
    const { rows, by, refused } = model.ranked(state);
    const row = rows.find(({ one }) => one.name === chosen) ?? rows[0];
    ranking(state, rows, row, wanted, by);
    $("refused").hidden = refused.length === 0;
    $("refused").open ||= rows.length === 0;
    put($("refused").firstElementChild, `Not in the list: ${refused.length}`);
    put($("refused").lastElementChild, refused.map(({ one, why }) => `<li>${one.name}: ${why}</li>`).join(""));
    $("chosen").hidden = !row;
    if (!row) return put($("answer"), "No mechanism here does that. The reasons are below.");
    const together = state.shuffle ? "shuffled, epsilon" : state.count > 1 ? `${state.count} releases together, epsilon` : "epsilon";
    put($("answer"), `${rows[0].one.name} ${state.goal === "budget" ? "has the least error" : "needs the least budget"}. ${wanted}: ${shown(rows[0].error)}; ${together} ${shown(rows[0].total)}.`);
    const [stems, area] = reportChart(state, row).map(({ length }) => length > 0);
    details(state, row, { ...holds, stems, area, "no-area": !area });
    profileChart(row);
    riskChart(row);
    growthChart(state, row);
  }

  function ranking(state, rows, row, wanted, by) {
    const several = state.count > 1 || state.shuffle;
    const person = state.have === "person";
    // Title, cell, whether the column is shown.
    const columns = [
      ["Standard deviation of a report, worst input", ({ report }) => shown(report), person],
      [wanted, ({ error }) => shown(error), true],
      [several ? "Epsilon of one report" : "Epsilon", ({ epsilon }) => shown(epsilon), true],
      [state.shuffle ? "shuffled" : "together", ({ total }) => shown(total), several],
      ["Reports lie in", ({ law }) => (Number.isFinite(law.high) ? [law.low, law.high].map((y) => shown(inUnits(state, y))).join(" to ") : "any number"), true],
    ].filter((column) => column[2]);
    const table = $("ranking");
    put(table.tHead.rows[0], ["Mechanism", ...columns.map(([title]) => title)].map((text) => `<th role="columnheader" scope="col">${text}</th>`).join(""));
    const most = Math.max(...rows.map(by));
    const focused = document.activeElement?.name === "mechanism";
    const body = rows.map((each) => {
      const { name } = each.one;
      const label = `<label><input type="radio" name="mechanism" value="${name}"${each === row ? " checked" : ""}>${name}</label>`;
      const bar = `<span class="bar" style="width:${((100 * by(each)) / most).toFixed(1)}%;max-width:calc(100% - 1.55rem)"></span>`;
      const titles = columns.map(([title]) => title);
      return rowOf(titles, label + bar, columns.map(([, cell]) => cell(each)), ` data-mechanism="${name}"${each === row ? ' class="chosen"' : ""}`);
    });
    put(table.tBodies[0], body.join(""));
    if (focused) table.querySelector("input:checked")?.focus();
  }
  const inUnits = (state, y) => (state.have === "person" ? state.lower : 0) + y * state.unit;
  const inputOf = (state) => (state.have === "person" ? state.input : 0);

  // The template's conditions and values that the chosen mechanism decides.
  function details(state, { one, epsilon, total, report, error, law }, holds) {
    const person = state.have === "person";
    const { normal, bernstein } = model.meanIntervals({ law }, state.n, state.confidence);
    const drawn = !law.untabulated;
    const t = inputOf(state);
    const given = { epsilon };
    if (one.delta) given.delta = state.delta;
    if (person && !one.noise) Object.assign(given, { lower: state.lower, upper: state.upper });
    else given.sensitivity = state.unit;
    Object.assign(given, law.own);
    const call = `${one.call}${Object.entries(given).map(([name, value]) => `${name}=${python(value)}`).join(", ")})`;
    const flags = Object.entries(given).map(([name, value]) => ` --${name.replace("_", "-")} ${python(value)}`).join("");
    const [lower, upper] = [python(state.lower), python(state.upper)];
    fill(
      {
        ...holds, drawn, biased: law.biased, unbiased: !law.biased,
        holder: !person && epsilon >= 0.001, bounded: !one.noise, unbounded: one.noise, bernstein: bernstein && person, tabled: !one.delta && !one.whole,
        approximate: holds.approximate && (one.delta || holds.several || holds.shuffle),
        accounts: holds.several || holds.shuffle || call.startsWith("accountants"), composes: state.shuffle || model.composable(one, epsilon, state),
      },
      {
        lower, upper, call, options: (one.command ?? one.name) + flags,
        epsilonCall: python(epsilon),
        statisticCall: state.whole && state.unit === 1 ? `count(epsilon=${python(epsilon)})` : `sum("x", lower=0, upper=${python(state.unit)}, epsilon=${python(epsilon)})`,
        n: whole(state.n), people: state.n, categories: state.categories, count: state.count, sensitivity: shown(state.sensitivity), delta: python(state.delta),
        confidence: state.confidence, level: `${100 * state.confidence} %`, epsilon: shown(epsilon), total: shown(total), report: shown(report), error: shown(error),
        truth: shown(inUnits(state, t)), mean: drawn && shown(inUnits(state, law.biased ? law.mean(t) : t)), deviation: drawn && shown(Math.sqrt(law.variance(t)) * state.unit),
        normal: shown(normal * state.unit), bernstein: shown(bernstein * state.unit), beyond: !person && shown(law.beyond(1 - state.confidence) * state.unit),
        values: person
          ? `np.full(1000, ${python(inUnits(state, t))})  # yours: one per person, each in [${lower}, ${upper}]`
          : "np.array([100.0])  # yours: the true value",
      }
    );
    control.input.setAttribute("aria-valuetext", `true value ${shown(inUnits(state, t))}`);
  }

  function chart(id, make) {
    charts.fit($(id).clientWidth);
    put($(id), make());
  }
  const note = (id, html) => put($(id), `<p class='help'>${html}</p>`);
  const elsewhere = (id) =>
    note(id, `The page draws the optimum at epsilon ${tables.drawn.map(({ epsilon }) => epsilon).join(", ")}. The commands below compute it at any other epsilon.`);

  // Draws the report, and returns its [probabilities of single reports, density].
  function reportChart(state, { one, law }) {
    if (law.untabulated) return elsewhere("report-chart") ?? [[], []];
    const person = state.have === "person";
    const t = inputOf(state);
    const far = one.noise ? 1.05 * law.beyond(0.0025) : 0;
    const [low, high] = one.noise ? [Math.min(t - far, 0), Math.max(t + far, Number(person))] : [law.low, law.high];
    const margin = 0.03 * (high - low);
    frame = [low - margin, high + margin];
    const data = (y) => inUnits(state, y);
    const seen = law.cells(t).filter(({ y, mass }) => y >= frame[0] && y <= frame[1] && mass > 0);
    let atoms = seen.filter(({ width }) => width === 0).map(({ y, mass }) => [data(y), mass]);
    let density = seen.filter(({ width }) => width > 0).flatMap(({ y, width, mass }) => [-0.5, 0.5].map((side) => [data(y + side * width), mass / width]));
    if (atoms.length > 400) [atoms, density] = [[], atoms];
    const title = `Distribution of a report of ${one.name} for the true value ${shown(data(t))}`;
    chart("report-chart", () => charts.report({ title, density, atoms, truth: data(t), range: frame.map(data), inputs: person ? [data(0), data(1)] : null }));
    return [atoms, density];
  }

  function profileChart({ one, epsilon, law }) {
    if (law.untabulated) return elsewhere("profile-chart");
    const end = one.name === "gaussian" ? epsilon * 1.5 : epsilon;
    const steps = one.name === "optimal" ? 24 : 60;
    // Denser towards the end, where delta falls.
    const at = Array.from({ length: steps + 1 }, (_, i) => end * (1 - (1 - i / steps) ** 3) * (1 - 1e-9));
    const points = at.map((e) => [e, law.delta(e)]).filter(([, delta]) => delta > 1e-13);
    const least = Math.max(10 ** Math.floor(Math.log10(Math.min(...points.map(([, delta]) => delta), 1e-2))), 1e-13);
    const falls = one.delta ? "ever smaller values" : `0 at epsilon ${shown(end)}`;
    const title = `Delta of one report of ${one.name} against epsilon, from ${shown(law.delta(0))} at epsilon 0, falling to ${falls}`;
    chart("profile-chart", () => charts.curves({ title, lines: [["line", points]], xRange: [0, end], yRange: [least, 1], xName: "epsilon", yName: "delta" }));
    put($("profile").tBodies[0], htmlRows([0, 0.25, 0.5, 0.75, 0.9].map((share) => [shown(share * epsilon), shown(law.delta(share * epsilon))])));
  }

  const RATES = Array.from({ length: 41 }, (_, i) => 10 ** (i / 10 - 4));
  function riskChart({ one, law }) {
    if (law.untabulated) return elsewhere("risk-chart");
    const points = RATES.map((rate) => [rate, law.power(rate)]);
    const percent = (share) => `${shown(100 * share)} %`;
    const title = `The most that an attack on one report of ${one.name} finds: ${[0.001, 0.01, 0.1].map((rate) => `${percent(law.power(rate))} where ${percent(rate)} are mistakes`).join(", ")}`;
    const lines = [["other", [[1e-4, 1e-4], [1, 1]]], ["line", points]];
    chart("risk-chart", () => charts.curves({ title, lines, xLog: true, xRange: [1e-4, 1], yRange: [1e-4, 1], xName: "false alarms (dashed: guessing)", yName: "found at most" }));
    put($("risk").tBodies[0], htmlRows([0.001, 0.01, 0.1, 0.5].map((rate) => [percent(rate), percent(law.power(rate))])));
  }

  function growthChart(state, { one, epsilon }) {
    if (!state.shuffle && !model.composable(one, epsilon, state))
      return note("growth-chart", `This page does not compose reports of ${one.name} at this epsilon. Use <code>accountants.guarantee(m).repeat(k)</code>.`);
    const at = state.shuffle ? tables.people : COUNTS;
    const value = (n) => (state.shuffle ? model.shuffled(one, epsilon, n, state.delta) : model.composed(one, epsilon, n, state));
    const points = at.map((n) => [n, value(n)]).filter(([, e]) => e > 0);
    const added = at.map((n) => [n, state.shuffle ? epsilon : n * epsilon]);
    const ends = [...points, ...added].map(([, e]) => e);
    const now = state.shuffle ? state.n : state.count;
    const yName = `epsilon at delta ${python(state.delta)}`;
    const xName = state.shuffle ? "people (dashed: without the shuffler)" : "releases (dashed: budgets added up)";
    const title = `${one.name}: ${yName}, ${points.map(([n, e]) => `${shown(e)} for ${n}`).join(", ")}`;
    const ranges = { xRange: [at[0], at.at(-1)], yRange: [Math.min(...ends) / 1.3, Math.max(...ends) * 1.3] };
    chart("growth-chart", () => charts.curves({ title, lines: [["other", added], ["line", points]], dot: [now, value(now)], xLog: true, ...ranges, xName, yName }));
    put($("growth").tBodies[0], htmlRows(points.map(([n, e]) => [whole(n), shown(e)])));
  }

  // ---------------------------------------------------------------- events
  function copy(id) {
    getSelection().selectAllChildren($(id));
    document.execCommand("copy");
    $("copied").textContent = "Copied.";
    setTimeout(() => ($("copied").textContent = ""), 2000);
  }
  function drag(event) {
    if (read().have !== "person" || (event.type === "pointermove" && !event.buttons)) return;
    charts.fit($("report-chart").clientWidth);
    const share = charts.share(event.clientX, $("report-chart").getBoundingClientRect());
    control.input.value = Math.min(Math.max(frame[0] + share * (frame[1] - frame[0]), 0), 1);
    update();
  }

  document.addEventListener("input", ({ target: { name, value } }) => {
    if (name === "slider") control.epsilon.value = Number((10 ** value).toPrecision(3));
    if (name === "slider" || name === "epsilon") slide();
    if (name === "mechanism") chosen = value;
    update();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const kind of ["pointerdown", "pointermove"]) $("report-chart").addEventListener(kind, drag);
  for (const button of document.querySelectorAll("[data-copy]")) button.addEventListener("click", () => copy(button.dataset.copy));
  addEventListener("resize", update);
  addEventListener("hashchange", fromAddress);
  fromAddress();
})();
