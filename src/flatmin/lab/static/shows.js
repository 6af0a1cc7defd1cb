/** What the page shows, and drawing it: at most once a frame of the screen. */

import { fill, marks } from "./controls.js";
import { RunMap } from "./map.js";
import { $, shown } from "./page.js";
import { drawEigenvalues, drawLayers, drawLedger, drawOrbits } from "./panels.js";
import { Moving, riskPlot, sharpnessPlot } from "./plots.js";
import { History } from "./state.js";
import { themes } from "./theme.js";

/** @typedef {import("./types.js").Run} Run */
/** @typedef {import("./types.js").Settings} Settings */

export const SPEEDS = [5, 10, 20, 40, 80, 160, 320, 640, 1280];
const PANEL_PAUSE = 1200;
/** Frames that are drawn before Plotly is loaded. */
const MOVING = 8;

export class Shows {
  /**
   * @param {any} offered what the server offers
   * @param {import("./types.js").State} state
   */
  constructor(offered, state) {
    this.offered = offered;
    this.history = new History(state);
    this.number = 0;
    /** @type {Record<string, Run>} */
    this.runs = {};
    /** @type {Record<string, {id: number, again: any}>} */
    this.waiting = {};
    this.playing = false;
    /** @type {number|null} entries shown, where the person holds the run */
    this.head = null;
    this.speed = 4;
    this.edited = "a";
    /** @type {number|null} step at which B leaves A */
    this.forkAt = null;
    /** @type {number|null} entry at which a slide of the rate began */
    this.slideAt = null;
    this.tested = null;
    /** Whether rates are being tested. */
    this.testing = false;
    /** The question that the panel waits for. */
    this.panelId = -1;
    this.orbits = null;
    this.frames = 0;
    this.sliding = false;
    /** Whether a run that is to be shown at once is still being made. */
    this.coming = false;
    this.panelDrawn = 0;
    this.loading = false;
    setTimeout(() => this.load(), 1500);
    this.curves = [new Moving("sharpness-plot"), new Moving("risk-plot")];
    this.dirty = new Set();
    this.map = new RunMap((rate, value, axis) => this.watch(rate, value, axis));
    this.toggleTheme = themes(() => this.redraw());
  }

  /** A pixel of the map was chosen. @param {number} rate @param {number} value @param {string} axis */
  watch(rate, value, axis) {}

  get state() { return this.history.state; }

  /** @returns {Settings} */
  get settings() { return /** @type {any} */ (this.state)[this.edited] ?? this.state.a; }

  get run() { return this.runs[this.edited] ?? this.runs.a; }

  /** @param {string} what */
  mark(what) {
    if (!this.dirty.size) requestAnimationFrame(() => this.draw());
    this.dirty.add(what);
  }

  redraw() {
    if (!this.dirty) return;
    for (const what of ["controls", "plots", "map", "panel"]) this.mark(what);
  }

  /** How many entries of a run are shown. @param {Run} run */
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
      if (this.frames > MOVING) this.load();
      const due = performance.now() - this.panelDrawn > PANEL_PAUSE;
      if (["layers", "eigenvalues"].includes(this.state.view.tab) && (still || due)) dirty.add("panel");
    }
    if (dirty.has("controls")) this.showControls();
    if (dirty.has("map")) { this.map.colour = this.state.view.colour; this.map.here = this.hereOnMap(); this.map.draw(); }
    if (dirty.has("panel") && window.Plotly) this.showPanel();
  }

  /** Everything at once in a theme. @param {string} theme */
  paint(theme) {
    document.documentElement.dataset.theme = theme;
    this.redraw();
    this.draw();
  }

  /** Plotly is large: it comes when something moves already. */
  load() {
    if (this.loading) return;
    this.loading = true;
    const script = document.createElement("script");
    script.src = "/static/plotly.js";
    script.onload = () => this.redraw();
    document.head.append(script);
  }

  showStatus() {
    const run = this.run;
    if (!run || !run.count) return;
    const held = this.head !== null && this.head < run.count;
    const state = run.end && !held ? (run.end.learned && run.end.state !== "oscillating" ? "learned" : run.end.state) : "";
    const { a, b } = this.runs;
    const both = b && b.count ? `A: ${a?.end ? `${a.end.learned ? "learned, " : ""}${a.end.state === "learning" ? "still falling" : a.end.state}` : "running"}. B: ${b.sentence}` : run.sentence;
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
    marks(run?.facts.ceiling ?? null, this.tested, run?.edgeRate ?? null, this.testing);
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
    $("pause").disabled = !this.coming && (!run || (!this.playing && Boolean(run.end) && this.head === null));
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
}
