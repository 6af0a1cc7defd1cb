/** The page: what the person does goes to the server, what the server says is drawn. */

import { bind, fill, marks, offer, setTable } from "./controls.js";
import { RunMap } from "./map.js";
import { $, settled, shown, toast } from "./page.js";
import { drawEigenvalues, drawLayers, drawLedger, drawOrbits } from "./panels.js";
import { Moving, riskPlot, sharpnessPlot } from "./plots.js";
import { ask, Socket } from "./socket.js";
import { clone, History, stateAddress, stateOf } from "./state.js";
import { copy, copyCode, saveCsv, savePicture } from "./take.js";
import { themes } from "./theme.js";

/** @typedef {import("./types.js").Run} Run */
/** @typedef {import("./types.js").Settings} Settings */

const SPEEDS = [5, 10, 20, 40, 80, 160, 320, 640, 1280];
const LIVE_PANEL = 1500;
const PANEL_PAUSE = 600;

class Page {
  /** @param {any} offered */
  constructor(offered) {
    this.offered = offered;
    const first = offered.scenes[0];
    const settings = clone(first.settings);
    if (offered.opening) {
      settings.problem = offered.opening.problem;
      settings.architecture = { kind: "mlp", depth: 5 };
      settings.initialisation = { name: "pytorch", scale: 1 };
      settings.method = { name: "descent", learning_rate: 0.01, steps: 500 };
      setTable(offered.opening.table);
    }
    /** @type {import("./types.js").State} */
    const usual = { a: settings, b: null, view: { axis: first.axis, colour: "state", tab: first.tab, log: true, distance: false, scene: offered.opening ? undefined : first.name } };
    this.history = new History(stateOf(location.hash, usual));
    this.number = 0;
    /** @type {Record<string, Run>} */
    this.runs = {};
    /** @type {Record<string, {id: number, again: any}>} */
    this.waiting = {};
    this.playing = false;
    /** @type {number|null} records shown, where the person holds the run */
    this.head = null;
    this.speed = 4;
    this.edited = "a";
    /** @type {number|null} step at which B leaves A */
    this.forkAt = null;
    /** @type {number|null} record at which a slide of the rate began */
    this.slideAt = null;
    this.tested = null;
    this.orbits = null;
    this.frames = 0;
    this.sliding = false;
    /** Whether a run that is to be shown at once is still being made. */
    this.coming = false;
    this.panelDrawn = 0;
    this.curves = [new Moving("sharpness-plot"), new Moving("risk-plot")];
    this.dirty = new Set();
    this.map = new RunMap((rate, value, axis) => this.watch(rate, value, axis));
    this.toggleTheme = themes(() => this.redraw());
    this.askMapSoon = settled(() => this.askMap(), 120);
    this.askAdviceSoon = settled(() => this.askAdvice(), 350);
    this.askPanelSoon = settled(() => this.askPanel(), 150);
    this.wire();
    this.socket = new Socket((message) => this.hear(message), (open) => this.connected(open));
  }

  get state() { return this.history.state; }
  /** @returns {Settings} */
  get settings() { return /** @type {any} */ (this.state)[this.edited] ?? this.state.a; }
  get run() { return this.runs[this.edited] ?? this.runs.a; }

  // Out.

  /** @param {boolean} open */
  connected(open) {
    document.body.dataset.connected = String(open);
    if (!open) { this.waiting = {}; this.say("The server is away; waiting for it.", "wrong"); return; }
    this.socket?.send({ type: "speed", value: SPEEDS[this.speed] });
    // After a break the run on the screen is shown again, whole; at the opening it is played.
    this.begin(Object.keys(this.runs).length ? "all" : "play");
  }

  /** Everything from the beginning. @param {"all"|"play"} show */
  begin(show) {
    this.head = null;
    this.edited = this.state.b ? "b" : "a";
    if (!this.state.b) { delete this.runs.b; this.socket.send({ type: "drop", slot: "b" }); }
    this.askRun("a", show);
    if (this.state.b) this.askRun("b", show);
    this.askMapSoon();
    this.tested = null;
    this.askAdviceSoon();
    this.orbits = null;
    this.askPanelSoon();
    this.writeAddress();
    this.redraw();
  }

  /**
   * Ask for a run; while one is on its way only the last wish is kept.
   * @param {string} slot @param {"all"|"play"|"hold"} show @param {number} [from]
   */
  askRun(slot, show, from = 0) {
    if (this.waiting[slot] && show === "all") { this.waiting[slot].again = [show, from]; return; }
    const id = ++this.number;
    this.waiting[slot] = { id, again: null };
    if (show === "play") this.playing = true;
    if (show === "all") this.playing = false;
    this.coming = show === "all";
    this.socket.send({ type: "run", id, slot, settings: /** @type {any} */ (this.state)[slot], from, show });
    this.showTransport();
  }

  askMap() {
    if (this.settings.method.name === "flow") { $("map-text").textContent = "Gradient flow has no learning rate: no map."; return; }
    this.mapId = ++this.number;
    $("map-stop").hidden = false;
    this.mapAsked = performance.now();
    this.socket.send({ type: "map", id: this.mapId, settings: { ...this.settings, repetitions: 1, changes: undefined }, axis: this.state.view.axis });
  }

  askAdvice() {
    this.adviceId = ++this.number;
    this.socket.send({ type: "advice", id: this.adviceId, settings: { ...this.settings, changes: undefined } });
  }

  askPanel() {
    const { tab } = this.state.view, run = this.run;
    if (!run) return;
    if (tab === "orbits" && !this.orbits) this.socket.send({ type: "orbits", id: ++this.number, settings: { ...this.settings, changes: undefined } });
    else if (tab === "ledger") {
      const until = run.columns.step[this.until(run) - 1];
      this.ledgerAsked = performance.now();
      this.socket.send({ type: "ledger", id: ++this.number, slot: this.edited, until: run.facts.steps && run.end && this.head === null ? run.facts.steps : until });
    } else if (!run.layers) this.socket.send({ type: "layers", id: ++this.number, slot: this.edited });
    this.mark("panel");
  }

  // In.

  /** @param {any} message */
  hear(message) {
    const handler = /** @type {any} */ (this)[`on_${message.type.replace("-", "_")}`];
    if (handler) handler.call(this, message);
  }

  on_run(/** @type {any} */ message) {
    const before = this.runs[message.slot];
    const kept = message.from && before ? Object.fromEntries(Object.entries(before.columns).map(([name, column]) => [name, column.slice(0, message.from)])) : {};
    this.runs[message.slot] = { id: message.id, facts: message.facts, columns: kept, count: message.from, end: null, sentence: before?.sentence ?? "", edgeRate: before?.edgeRate ?? null, layers: null, extent: message.extent };
    this.mark("controls");
  }

  on_frame(/** @type {any} */ message) {
    const run = this.runs[message.slot];
    if (!run || run.id !== message.id) return;
    for (const [name, values] of Object.entries(message.columns)) {
      run.columns[name] ??= [];
      run.columns[name].length = message.first;
      run.columns[name].push(.../** @type {number[]} */ (values));
    }
    run.count = run.columns.step.length;
    run.extent = message.extent;
    run.end = message.end;
    run.sentence = message.sentence;
    run.edgeRate = message.edge_rate;
    if (this.head !== null) this.head = run.count;
    if (run.end) {
      this.coming = false;
      if (Object.values(this.runs).every((one) => one.end)) { this.playing = false; this.head = null; }
      this.askPanelSoon();
      this.mark("controls");
    }
    this.mark("plots");
    const wish = this.waiting[message.slot];
    if (wish?.id === message.id) {
      delete this.waiting[message.slot];
      // The next wish goes out when this one has been drawn.
      if (wish.again) requestAnimationFrame(() => this.askRun(message.slot, wish.again[0], wish.again[1]));
    }
    const due = performance.now() - (this.ledgerAsked ?? 0) > LIVE_PANEL;
    if (this.state.view.tab === "ledger" && this.playing && due) this.askPanel();
  }

  on_busy(/** @type {any} */ message) { this.say(message.message, ""); }

  on_map(/** @type {any} */ message) { if (message.id === this.mapId) this.map.begin(message); }

  on_map_pass(/** @type {any} */ message) {
    if (message.id !== this.mapId) return;
    this.map.colour = this.state.view.colour;
    this.map.here = this.hereOnMap();
    this.map.show(message);
    $("map").dataset.stride = message.stride;
    const time = ((performance.now() - (this.mapAsked ?? 0)) / 1000).toFixed(2);
    const count = message.state.length * message.state[0].length;
    $("map-text").textContent = `${count} runs of ${this.map.plan.steps} steps in ${time} s. Click one to watch it.`;
    if (message.last) { $("map-stop").hidden = true; $("map").dataset.complete = String(message.id); }
  }

  on_advice(/** @type {any} */ message) {
    if (message.id !== this.adviceId) return;
    this.tested = message.rate;
    this.mark("controls");
  }

  on_layers(/** @type {any} */ message) {
    const run = this.runs[message.slot];
    if (run && run.id === message.id) { run.layers = message; this.mark("panel"); }
  }

  on_ledger(/** @type {any} */ message) { this.ledger = message; this.mark("panel"); }
  on_orbits(/** @type {any} */ message) { this.orbits = message; this.mark("panel"); }

  on_error(/** @type {any} */ message) {
    if (message.about === "run") { this.waiting = {}; this.playing = false; this.coming = false; this.say(message.message, "wrong"); this.showTransport(); }
    else if (message.about === "map") { $("map-text").textContent = message.message; $("map-stop").hidden = true; }
    else if (message.about !== "advice") $("panel-text").textContent = message.message;
  }

  // Drawing: at most once a frame of the screen.

  /** @param {string} what */
  mark(what) {
    if (!this.dirty.size) requestAnimationFrame(() => this.draw());
    this.dirty.add(what);
  }

  redraw() {
    if (!this.dirty) return;
    for (const what of ["controls", "plots", "map", "panel"]) this.mark(what);
  }

  /** How many records of a run are shown. @param {Run} run */
  until(run) { return Math.max(1, this.head === null ? run.count : Math.min(this.head, run.count)); }

  draw() {
    const dirty = this.dirty;
    this.dirty = new Set();
    const ready = Object.fromEntries(Object.entries(this.runs).filter(([, run]) => run.count > 0));
    if (dirty.has("plots") && Object.keys(ready).length) {
      const until = (/** @type {Run} */ run) => this.until(run);
      const still = !this.playing && !this.sliding;
      this.curves[0].draw(...sharpnessPlot(ready, this.state.view, until), still);
      this.curves[1].draw(...riskPlot(ready, this.state.view, until), still);
      this.showStatus();
      this.showTransport();
      this.frames += 1;
      document.body.dataset.frames = String(this.frames);
      const due = performance.now() - this.panelDrawn > PANEL_PAUSE;
      if (["layers", "eigenvalues"].includes(this.state.view.tab) && (still || due)) dirty.add("panel");
    }
    if (dirty.has("controls")) this.showControls();
    if (dirty.has("map")) { this.map.colour = this.state.view.colour; this.map.here = this.hereOnMap(); this.map.draw(); }
    if (dirty.has("panel")) this.showPanel();
  }

  showStatus() {
    const run = this.run;
    if (!run || !run.count) return;
    const held = this.head !== null && this.head < run.count;
    const state = run.end && !held ? (run.end.learned && run.end.state !== "oscillating" ? "learned" : run.end.state) : "";
    const both = this.runs.b && this.runs.b.count ? `B: ${this.runs.b.sentence}` : run.sentence;
    this.say(held ? `Step ${run.columns.step[this.until(run) - 1]}: sharpness ${shown(run.columns.sharpness[this.until(run) - 1])}, excess risk ${shown(run.columns.excess_risk[this.until(run) - 1])}.` : both, state);
    this.showMarks();
  }

  /** @param {string} words @param {string} kind */
  say(words, kind) {
    const text = words.replace(/\beta\b/g, "η").replace(/\bbeta\b/g, "β");
    if ($("status").textContent !== text) $("status").textContent = text;
    $("status-box").className = `status ${kind}`;
    document.body.dataset.ended = String(Boolean(this.run?.end));
  }

  showMarks() {
    const run = this.run, flow = this.settings.method.name === "flow";
    if (flow) { $("rate-marks").replaceChildren(); $("rate-legend").textContent = "Gradient flow has no rate."; return; }
    marks(run?.facts.ceiling ?? null, this.tested, run?.edgeRate ?? null);
  }

  showControls() {
    const run = this.run, settings = this.settings;
    fill(settings, run?.facts ?? null, this.rateHere());
    this.showMarks();
    $("editing").hidden = !this.state.b;
    $("edit-a").setAttribute("aria-pressed", String(this.edited === "a"));
    $("edit-b").setAttribute("aria-pressed", String(this.edited === "b"));
    const place = this.changePlace();
    $("rate-from").textContent = place === null ? "" : `from step ${place.step} on`;
    const scene = this.offered.scenes.find((/** @type {any} */ one) => one.name === this.state.view.scene);
    $("scene-text").textContent = scene?.text ?? "";
    $("scene-text").hidden = !scene;
    for (const button of document.querySelectorAll("nav button")) button.setAttribute("aria-pressed", String(/** @type {HTMLElement} */ (button).dataset.scene === this.state.view.scene));
    $("map-axis").value = this.state.view.axis; $("map-colour").value = this.state.view.colour;
    $("log").checked = this.state.view.log; $("distance").checked = this.state.view.distance;
    $("undo").disabled = !this.history.past.length; $("redo").disabled = !this.history.future.length;
    for (const button of document.querySelectorAll("[role=tab]")) button.setAttribute("aria-selected", String(/** @type {HTMLElement} */ (button).dataset.tab === this.state.view.tab));
  }

  showTransport() {
    const run = this.run;
    $("pause").textContent = this.playing ? "Pause" : this.coming ? "Stop" : "Go on";
    $("pause").disabled = !run || (!this.playing && Boolean(run.end) && this.head === null);
    $("speed").textContent = `${SPEEDS[this.speed]}/s`;
    document.body.dataset.playing = String(this.playing);
    if (!run || !run.count) return;
    const until = this.until(run);
    $("scrub").max = String(run.count);
    if (document.activeElement !== $("scrub") || this.head === null) $("scrub").value = String(until);
    const now = run.columns.step[until - 1];
    $("at").textContent = `${now} / ${run.facts.steps}`;
  }

  showPanel() {
    this.panelDrawn = performance.now();
    const { tab } = this.state.view, run = this.run;
    $("panel-table").hidden = tab !== "ledger"; $("panel-plot").hidden = tab === "ledger";
    if (tab === "ledger") { if (this.ledger) drawLedger(this.ledger); return; }
    if (tab === "orbits") {
      if (this.orbits) drawOrbits(this.orbits, run?.facts.ceiling ? (this.rateHere() ?? 0) / run.facts.ceiling : null);
      else { Plotly.purge($("panel-plot")); $("panel-text").textContent = "…"; }
      return;
    }
    if (!run?.layers || !run.count) return;
    const x = run.columns.time ?? run.columns.step;
    const until = x[this.until(run) - 1] ?? Infinity, end = run.layers.at.at(-1);
    if (tab === "layers") drawLayers(run, until, end);
    else drawEigenvalues(run, until, end, this.state.view.log);
  }

  hereOnMap() {
    const { axis } = this.state.view, s = this.settings;
    const value = axis === "scale" ? s.initialisation.scale : axis === "depth" ? s.architecture.depth : s.problem.condition_number;
    return value && s.method.learning_rate ? { rate: s.method.learning_rate, value } : null;
  }

  // What the person does.

  /** The rate where the run is shown. */
  rateHere() {
    const s = this.settings, run = this.run;
    if (s.method.name === "flow") return null;
    const step = run?.count ? run.columns.step[this.until(run) - 1] : Infinity;
    const before = (s.changes ?? []).filter(([at]) => at <= (run?.end && this.head === null ? Infinity : step));
    return before.length ? before[before.length - 1][1] : s.method.learning_rate;
  }

  /** Where a new rate would begin in the middle of a run; null if it is for the whole of it. */
  changePlace() {
    const run = this.run;
    if (!run || !run.count || this.settings.method.name === "flow") return null;
    if (this.forkAt !== null && this.edited === "b") return { step: this.forkAt, record: run.columns.step.indexOf(this.forkAt) };
    const record = this.slideAt ?? this.until(run) - 1;
    const middle = this.slideAt !== null || !run.end || (this.head !== null && this.head < run.count);
    if (!middle || record < 1) return null;
    return { step: Number(run.columns.step[record]), record };
  }

  /** @param {(settings: Settings) => void} edit @param {boolean} done @param {string} [what] */
  change(edit, done, what) {
    const settings = this.settings;
    this.sliding = !done;
    const place = what === "rate" ? this.changePlace() : null;
    this.state.view.scene = undefined;
    if (place) {
      if (!done) this.slideAt = place.record;
      const trial = clone(settings);
      edit(trial);
      settings.changes = [...(settings.changes ?? []).filter(([step]) => step < place.step), [place.step, trial.method.learning_rate]];
      const going = this.playing;
      const show = this.forkAt !== null && this.edited === "b" ? "all" : going ? "play" : "hold";
      if (show !== "all") this.head = null;
      if (done || show !== "play") this.askRun(this.edited, /** @type {any} */ (show), show === "all" ? 0 : place.record + 1);
      if (done) this.slideAt = null;
    } else {
      edit(settings);
      settings.changes = undefined;
      this.forkAt = null;
      this.head = null;
      this.askRun(this.edited, "all");
    }
    this.orbits = null;
    if (done) {
      this.history.keep();
      this.writeAddress();
      if (!place) {
        if (what !== "rate") { this.tested = null; this.askAdviceSoon(); }
        this.askMapSoon();
      }
      this.askPanelSoon();
    }
    this.mark("controls");
    this.mark("map");
  }

  /** @param {number} rate @param {number} value @param {string} axis */
  watch(rate, value, axis) {
    const s = this.settings;
    s.changes = undefined;
    s.method.learning_rate = rate;
    if (axis === "scale") s.initialisation.scale = value;
    else if (axis === "depth") s.architecture.depth = value;
    else s.problem = this.spectrum(value);
    s.method.steps = this.map.plan.steps;
    this.state.view.scene = undefined;
    this.forkAt = null;
    this.history.keep();
    this.head = null;
    this.askRun(this.edited, "play");
    this.askPanelSoon();
    this.writeAddress();
    this.redraw();
  }

  /** Data of a condition number, as the map has them. @param {number} condition */
  spectrum(condition) {
    const { facts } = this.run, noise = this.settings.problem.noise ?? 0;
    return { generator: "spectrum", n: Math.max(facts.n, facts.d + 1), d: facts.d, noise, condition_number: condition };
  }

  writeAddress() { window.history.replaceState(null, "", `#${stateAddress(this.state)}`); }

  /** @param {any} scene */
  play(scene) {
    const { view } = this.state;
    this.history.state = { a: clone(scene.settings), b: null, view: { ...view, axis: scene.axis, tab: scene.tab, scene: scene.name } };
    this.history.keep();
    this.forkAt = null;
    this.begin("play");
  }

  pauseOrGoOn() {
    if (this.playing) { this.playing = false; this.socket.send({ type: "pause" }); this.head = this.run?.count ?? null; }
    else if (this.coming) { for (const slot of Object.keys(this.runs)) this.socket.send({ type: "cancel", what: `run-${slot}` }); this.coming = false; this.waiting = {}; }
    else if (this.run && (!this.run.end || this.head !== null)) {
      this.playing = true;
      this.socket.send({ type: "play", from: this.until(this.run) });
      for (const run of Object.values(this.runs)) { run.end = null; }
      this.head = null;
    }
    this.redraw();
  }

  stepOnce() {
    if (!this.run) return;
    const from = this.run.end && this.head === null ? 0 : this.until(this.run);
    this.playing = false;
    for (const run of Object.values(this.runs)) { run.end = null; run.count = Math.min(run.count, from); for (const column of Object.values(run.columns)) column.length = Math.min(column.length, from); }
    this.head = from + 1;
    this.socket.send({ type: "step", from, by: 1 });
    this.showTransport();
  }

  fork() {
    const run = this.run;
    if (!run || !run.count) return;
    const held = this.head !== null && this.head < run.count, middle = held || !run.end;
    const step = Number(run.columns.step[this.until(run) - 1]);
    this.state.b = clone(this.state.a);
    this.forkAt = middle && step > 0 && this.settings.method.name !== "flow" ? step : null;
    if (this.playing) this.socket.send({ type: "pause" });
    this.playing = false;
    this.edited = "b";
    this.head = null;
    this.history.keep();
    this.writeAddress();
    this.askRun("a", "all");
    this.askRun("b", "all");
    toast(this.forkAt === null ? "B is a copy of A: change a setting to compare." : `B leaves A at step ${this.forkAt}: choose its rate.`);
    this.redraw();
  }

  closeB() {
    this.state.b = null;
    this.edited = "a";
    this.forkAt = null;
    delete this.runs.b;
    this.socket.send({ type: "drop", slot: "b" });
    this.history.keep();
    this.writeAddress();
    this.redraw();
  }

  /** @param {boolean} moved */
  restored(moved) { if (moved) { this.forkAt = null; this.begin("all"); } }

  /** @param {number} by */
  faster(by) {
    this.speed = Math.min(SPEEDS.length - 1, Math.max(0, this.speed + by));
    this.socket.send({ type: "speed", value: SPEEDS[this.speed] });
    this.showTransport();
  }

  /** @param {File} file */
  async upload(file) {
    if (file.size > this.offered.limits.bytes) { toast(`${file.name}: ${file.size} bytes; the page takes at most ${this.offered.limits.bytes}.`); return; }
    try {
      const table = await (await ask(`/api/table?name=${encodeURIComponent(file.name)}`, file)).json();
      setTable(table);
      this.change((s) => { s.problem = { file: table.key, target: table.columns.at(-1) ?? "" }; if (s.architecture.kind !== "residual") s.architecture.width = undefined; }, true);
    } catch (error) {
      this.say(/** @type {Error} */ (error).message, "wrong");
    }
  }

  /** @param {string} tab */
  openTab(tab) {
    this.state.view.tab = tab;
    this.writeAddress();
    this.mark("controls");
    Plotly.purge($("panel-plot"));
    $("panel-text").textContent = "";
    this.askPanel();
  }

  wire() {
    offer(this.offered);
    $("version").textContent = `flatmin ${this.offered.version}`;
    $("scenes").replaceChildren(...this.offered.scenes.map((/** @type {any} */ scene) => {
      const button = document.createElement("button");
      button.textContent = scene.short;
      button.setAttribute("aria-label", scene.title);
      button.dataset.scene = scene.name;
      button.dataset.testid = `scene-${scene.name}`;
      button.title = `${scene.title}. ${scene.text}`;
      button.addEventListener("click", () => this.play(scene));
      return button;
    }));
    bind((edit, done, what) => this.change(edit, done, what));
    /** @param {string} id @param {() => any} work */
    const click = (id, work) => $(id).addEventListener("click", async () => { try { await work(); } catch (error) { toast(/** @type {Error} */ (error).message); } });
    click("run", () => this.begin("play"));
    click("pause", () => this.pauseOrGoOn());
    click("step", () => this.stepOnce());
    click("slower", () => this.faster(-1));
    click("faster", () => this.faster(1));
    click("fork", () => this.fork());
    click("close-b", () => this.closeB());
    click("edit-a", () => { this.edited = "a"; this.redraw(); this.askPanel(); });
    click("edit-b", () => { this.edited = "b"; this.redraw(); this.askPanel(); });
    click("undo", () => this.restored(this.history.undo()));
    click("redo", () => this.restored(this.history.redo()));
    click("share", () => { this.writeAddress(); return copy(location.href.replace(/\?token=[^#]*/, ""), "Address"); });
    click("copy-python", () => copyCode(this.settings, "python"));
    click("copy-command", () => copyCode(this.settings, "command"));
    click("save-csv", () => saveCsv(this.settings));
    click("save-png", () => savePicture("png"));
    click("save-svg", () => savePicture("svg"));
    click("theme", () => this.toggleTheme());
    click("map-stop", () => { this.socket.send({ type: "cancel", what: "map" }); this.mapId = -1; $("map-stop").hidden = true; });
    $("take").addEventListener("click", (/** @type {Event} */ event) => { if (/** @type {HTMLElement} */ (event.target).tagName === "BUTTON") $("take").open = false; });
    $("scrub").addEventListener("input", () => {
      if (this.playing) { this.playing = false; this.socket.send({ type: "pause" }); }
      const value = Number($("scrub").value);
      this.head = this.run && value >= this.run.count && this.run.end ? null : value;
      this.redraw();
    });
    for (const [id, key] of [["map-axis", "axis"], ["map-colour", "colour"]]) {
      $(id).addEventListener("change", () => {
        /** @type {any} */ (this.state.view)[key] = $(id).value;
        this.writeAddress();
        if (key === "axis") this.askMap(); else this.mark("map");
      });
    }
    for (const id of ["log", "distance"]) {
      $(id).addEventListener("change", () => { /** @type {any} */ (this.state.view)[id] = $(id).checked; this.writeAddress(); this.redraw(); });
    }
    const tabs = [.../** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[role=tab]"))];
    tabs.forEach((tab, i) => {
      tab.addEventListener("click", () => this.openTab(/** @type {string} */ (tab.dataset.tab)));
      tab.addEventListener("keydown", (event) => {
        const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (by) { const next = tabs[(i + by + tabs.length) % tabs.length]; next.focus(); next.click(); }
      });
    });
    $("file").addEventListener("change", () => { if ($("file").files[0]) this.upload($("file").files[0]); $("file").value = ""; });
    for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
      document.addEventListener(kind, (/** @type {any} */ event) => {
        if (![...(event.dataTransfer?.types ?? [])].includes("Files")) return;
        event.preventDefault();
        $("drop").classList.toggle("over", kind === "dragover" || kind === "dragenter");
        if (kind === "drop" && event.dataTransfer.files[0]) this.upload(event.dataTransfer.files[0]);
      });
    }
    const resized = new ResizeObserver((entries) => {
      for (const { target } of entries) if (/** @type {any} */ (target).data && /** @type {HTMLElement} */ (target).offsetParent) Plotly.Plots.resize(target);
      for (const one of this.curves) one.signature = "";
    });
    for (const plot of document.querySelectorAll(".plot")) resized.observe(plot);
    document.addEventListener("keydown", (event) => this.key(event));
    window.addEventListener("hashchange", () => {
      const text = stateAddress(this.state);
      if (location.hash.slice(1) === text) return;
      this.history.state = stateOf(location.hash, this.state);
      this.history.keep();
      this.begin("all");
    });
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const place = /** @type {HTMLElement} */ (event.target);
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z" && !/text|number/.test(/** @type {any} */ (place).type ?? "")) {
      event.preventDefault();
      this.restored(event.shiftKey ? this.history.redo() : this.history.undo());
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || /INPUT|SELECT|TEXTAREA|SUMMARY/.test(place.tagName)) return;
    const work = /** @type {Record<string, () => void>} */ ({
      r: () => this.begin("play"), " ": () => this.pauseOrGoOn(), ".": () => this.stepOnce(),
      "]": () => this.faster(1), "[": () => this.faster(-1), f: () => this.fork(),
    })[event.key];
    if (!work || (event.key === " " && place.tagName === "BUTTON")) return;
    event.preventDefault();
    work();
  }
}

const page = new Page(await (await ask("/api/start")).json());
// For those who look into the page from its console, and for its tests.
/** @type {any} */ (window).lab = page;
