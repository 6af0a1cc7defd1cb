/** The form: settings into its fields, and fields into settings. */

import { $, shown } from "./page.js";

/** @typedef {import("./types.js").Settings} Settings */

/** Logarithmic sliders: 0 to 1000 is from low to high. */
class Logarithmic {
  /** @param {string} id @param {number} low @param {number} high */
  constructor(id, low, high) { this.id = id; this.low = low; this.high = high; }
  get value() { return Number((this.low * (this.high / this.low) ** ($(this.id).value / 1000)).toPrecision(4)); }
  /** @param {number} value from 0 to 1 */
  place(value) { return Math.log(value / this.low) / Math.log(this.high / this.low); }
  /** @param {number} value */
  set(value) { $(this.id).value = String(Math.round(1000 * Math.min(1, Math.max(0, this.place(value))))); }
}

export const rateSlider = new Logarithmic("rate", 1e-3, 1);
const scaleSlider = new Logarithmic("scale", 0.01, 10);

const number = (/** @type {string} */ text) => (text.trim() === "" ? null : Number(text));
const names = (/** @type {string} */ text) => text.split(",").map((word) => word.trim()).filter(Boolean);
/** What was typed, as it is if it is no number: the server says what is wrong with it. */
const typed = (/** @type {string} */ text) => (text.trim() !== "" && Number.isFinite(Number(text)) ? Number(text) : text);

const MADE = /** @type {Record<string, Record<string, any>>} */ ({
  linear: { paper: "linear" }, underdetermined: { paper: "underdetermined" }, nonlinear: { paper: "nonlinear" },
  gaussian: { generator: "gaussian", n: 50, d: 5, noise: 1.0, seed: 0 },
  spectrum: { generator: "spectrum", n: 50, d: 5, noise: 0.0, condition_number: 30, alignment: "spread", seed: 0 },
});

/** Tables that were brought here, by key. @type {Map<string, {key: string, name: string, columns: string[]}>} */
const tables = new Map();
export const setTable = (/** @type {any} */ found) => { tables.delete(found.key); tables.set(found.key, found); };

/** @param {any} offered what /api/start says */
export function offer(offered) {
  const fill = (/** @type {string} */ id, /** @type {[string, string][]} */ options) => $(id).replaceChildren(...options.map(([value, text]) => new Option(text, value)));
  fill("init", offered.initialisations.map((/** @type {string} */ name) => [name, name]));
  fill("activation", offered.activations.map((/** @type {string} */ name) => [name, name]));
  fill("method", Object.entries(offered.methods));
  own = offered.own;
}

/** What methods have of their own. @type {Record<string, Record<string, {label: string, usual: number}>>} */
let own = {};

/** The names of what a method has of its own, each with a field. @param {string} method */
function ownFields(method) {
  const fields = own[method] ?? {}, box = $("own");
  if (box.dataset.method !== method) {
    box.querySelectorAll("[data-row]").forEach((row) => row.remove());
    box.append(...Object.entries(fields).map(([key, { label }]) => {
      const row = document.createElement("label"), field = document.createElement("input");
      Object.assign(field, { id: key, type: "text", inputMode: "decimal" });
      field.dataset.own = row.dataset.row = key;
      row.append(`${label} `, field);
      return row;
    }));
    box.dataset.method = method;
  }
  return Object.keys(fields);
}

/** Fields from settings. @param {Settings} settings @param {Record<string, any>|null} facts @param {number|null} rate the rate that the slider shows */
export function fill(settings, facts, rate) {
  const { problem, architecture, initialisation, method } = settings;
  const busy = document.activeElement;
  const put = (/** @type {string} */ id, /** @type {any} */ value) => { if ($(id) !== busy || $(id).type === "range") $(id).value = value ?? ""; };
  if (facts?.ceiling) { rateSlider.low = facts.ceiling / 100; rateSlider.high = facts.ceiling * 6; }
  const flow = method.name === "flow";
  if (rate !== null && !flow) { rateSlider.set(rate); put("rate-number", rate); }
  $("rate").disabled = $("rate-number").disabled = flow;
  $("rate").setAttribute("aria-valuetext", flow ? "none" : String(rate));
  put("depth", architecture.depth); put("depth-number", architecture.depth);
  put("kind", architecture.kind ?? "mlp"); put("width", architecture.width);
  $("width").disabled = architecture.kind === "residual";
  put("activation", architecture.activation ?? "linear");
  $("biases").checked = Boolean(architecture.biases);
  $("activation-row").hidden = architecture.kind === "residual";
  $("activation").disabled = $("biases").disabled = facts?.targets > 1;
  scaleSlider.set(initialisation.scale); put("scale-number", initialisation.scale);
  put("init", initialisation.name); put("seed", settings.seed);
  const count = String(settings.repetitions ?? 1);
  if (![...$("networks").options].some((one) => one.value === count)) $("networks").add(new Option(count, count));
  put("networks", count);
  put("method", method.name); put("steps", method.steps);
  for (const name of ownFields(method.name)) put(name, method[name]);
  const source = problem.paper ?? problem.generator ?? "table";
  if (![...$("data").options].some((one) => one.value === source)) $("data").add(new Option(source, source));
  put("data", source);
  $("made").hidden = !problem.generator; $("table").hidden = source !== "table";
  put("n", problem.n); put("d", problem.d); put("noise", problem.noise);
  put("condition", problem.condition_number); put("targets", problem.targets ?? 1); put("alignment", problem.alignment ?? "spread");
  $("condition-row").hidden = $("alignment-row").hidden = problem.generator !== "spectrum";
  $("targets-row").hidden = problem.generator !== "gaussian";
  if (source === "table") {
    const table = tables.get(problem.file);
    $("file-name").textContent = table ? table.name : (problem.file ?? "").replace(/^[^-]*-/, "") || "Drop a CSV here, or choose one";
    const columns = table?.columns.length ? table.columns : [problem.target, ...(problem.one_hot?.length ? [] : facts?.features ?? [])].filter(Boolean);
    $("target").replaceChildren(...columns.map((name) => new Option(name, name)));
    put("target", problem.target);
    put("more-targets", (problem.more_targets ?? []).join(", "));
    put("drop-columns", (problem.drop ?? []).join(", ")); put("one-hot", (problem.one_hot ?? []).join(", "));
    $("intercept").checked = Boolean(problem.intercept); $("standardise").checked = Boolean(problem.standardise);
    put("missing", problem.missing ?? "");
  }
  if (facts) {
    const outputs = facts.targets > 1 ? `, ${facts.targets} outputs` : "";
    $("data-facts").textContent = `${facts.n} rows, ${facts.d} features${outputs}; condition number ${shown(facts.condition_number)}; |w*| ${shown(facts.w_star_norm)}.`;
  }
}

/** Several outputs are for linear perceptrons. @param {Settings} s */
function plainNetwork(s) {
  if (s.architecture.kind === "residual") s.initialisation = { name: "pytorch", scale: 1 };
  s.architecture = { kind: "mlp", depth: s.architecture.depth, width: s.architecture.width };
}

/**
 * Wire the fields. `change(edit, done, what)` applies an edit to the settings: `done` when the
 * person has let go.
 * @param {(edit: (settings: Settings) => void, done: boolean, what?: string) => void} change
 */
export function bind(change) {
  /** @param {string} id @param {(settings: Settings) => void} edit */
  const on = (id, edit) => $(id).addEventListener("change", () => change(edit, true));
  /** @param {string} id @param {(settings: Settings) => void} edit @param {string} [what] */
  const slide = (id, edit, what) => {
    $(id).addEventListener("input", () => change(edit, false, what));
    $(id).addEventListener("change", () => change(edit, true, what));
  };
  slide("rate", (s) => { s.method.learning_rate = rateSlider.value; }, "rate");
  $("rate-number").addEventListener("change", () => change((s) => { s.method.learning_rate = typed($("rate-number").value); }, true, "rate"));
  slide("depth", (s) => { s.architecture.depth = Number($("depth").value); });
  on("depth-number", (s) => { s.architecture.depth = typed($("depth-number").value); });
  slide("scale", (s) => { s.initialisation.scale = scaleSlider.value; });
  on("scale-number", (s) => { s.initialisation.scale = typed($("scale-number").value); });
  on("kind", (s) => {
    const residual = $("kind").value === "residual";
    s.architecture = residual ? { kind: "residual", depth: s.architecture.depth } : { kind: "mlp", depth: s.architecture.depth };
    if (residual !== (s.initialisation.name === "residual")) s.initialisation = residual ? { name: "residual", scale: 0.5 } : { name: "pytorch", scale: 1 };
  });
  on("width", (s) => { s.architecture.width = $("width").value.trim() === "" ? undefined : typed($("width").value); });
  on("activation", (s) => { s.architecture.activation = $("activation").value; });
  on("biases", (s) => { s.architecture.biases = $("biases").checked || undefined; });
  on("init", (s) => {
    s.initialisation.name = $("init").value;
    const residual = s.initialisation.name === "residual";
    if (residual) s.architecture = { kind: "residual", depth: s.architecture.depth };
    else if (s.architecture.kind === "residual") s.architecture.kind = "mlp";
  });
  on("seed", (s) => { s.seed = typed($("seed").value); });
  on("networks", (s) => { s.repetitions = Number($("networks").value); });
  on("steps", (s) => { s.method.steps = typed($("steps").value); });
  $("own").addEventListener("change", (event) => {
    const field = /** @type {HTMLInputElement} */ (event.target);
    if (field.dataset.own) change((s) => { s.method[field.id] = typed(field.value); }, true);
  });
  on("method", (s) => {
    const name = $("method").value;
    const rate = s.method.learning_rate ?? Number(shown(rateSlider.high / 12));
    s.method = { name, steps: s.method.steps };
    if (name !== "flow") s.method.learning_rate = rate;
    for (const [key, { usual }] of Object.entries(own[name] ?? {})) s.method[key] = usual;
    if (name === "flow") s.changes = undefined;
  });
  on("data", (s) => {
    const source = $("data").value;
    if (source !== "table") { s.problem = { ...MADE[source] }; return; }
    const table = [...tables.values()].at(-1);
    if (table) s.problem = { file: table.key, target: table.columns.at(-1) };
    else { $("table").hidden = false; $("made").hidden = true; $("file").click(); }
  });
  on("n", (s) => { s.problem.n = typed($("n").value); });
  on("d", (s) => { s.problem.d = typed($("d").value); });
  on("noise", (s) => { s.problem.noise = typed($("noise").value); });
  on("condition", (s) => { s.problem.condition_number = typed($("condition").value); });
  on("alignment", (s) => { s.problem.alignment = $("alignment").value; });
  on("targets", (s) => { s.problem.targets = number($("targets").value) ?? 1; if (s.problem.targets > 1) plainNetwork(s); });
  on("target", (s) => { s.problem.target = $("target").value; });
  on("more-targets", (s) => { s.problem.more_targets = names($("more-targets").value); if (s.problem.more_targets.length) plainNetwork(s); });
  on("drop-columns", (s) => { s.problem.drop = names($("drop-columns").value); });
  on("one-hot", (s) => { s.problem.one_hot = names($("one-hot").value); });
  on("intercept", (s) => { s.problem.intercept = $("intercept").checked; });
  on("standardise", (s) => { s.problem.standardise = $("standardise").checked; });
  on("missing", (s) => { s.problem.missing = $("missing").value || undefined; });
}

/** Marks under the rate, and their numbers: the ceiling, the tested rate, the edge of the present sharpness. */
export function marks(/** @type {number|null} */ ceiling, /** @type {number|null} */ tested, /** @type {number|null} */ edge, testing = false) {
  const wanted = /** @type {[number|null, string, string, string][]} */ ([
    [ceiling, "ceiling", "var(--green)", "2/S_min: above it no minimiser is stable"],
    [tested, "tested", "var(--blue)", "networks from this start learned at it"],
    [edge, "2/S now", "var(--orange)", "the rate whose edge is the present sharpness"],
  ]);
  const ticks = [], words = [];
  for (const [value, name, colour, why] of wanted) {
    const waits = name === "tested" && testing && !value;
    if (!value && !waits) continue;
    const word = document.createElement("span");
    word.title = why;
    word.style.color = colour;
    word.textContent = `${name} ${value ? shown(value) : "…"}`;
    words.push(word);
    const place = value ? rateSlider.place(value) : -1;
    if (place < 0 || place > 1) continue;
    const tick = document.createElement("i");
    tick.style.left = `${100 * place}%`;
    tick.style.background = colour;
    ticks.push(tick);
  }
  $("rate-marks").replaceChildren(...ticks);
  $("rate-legend").replaceChildren(...words);
}
