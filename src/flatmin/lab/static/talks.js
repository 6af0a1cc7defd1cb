/** What the page asks of the server, and what it makes of the answers. */

import { $, settled } from "./page.js";
import { Shows, SPEEDS } from "./shows.js";
import { Socket } from "./socket.js";
import { stateAddress } from "./state.js";

/** @typedef {import("./types.js").Run} Run */

const COMPILING = "Working … The first run of a kind on this machine compiles its kernels: some seconds, once.";
const WORKING = /** @type {Record<string, string>} */ ({ layers: "Measuring the layers", ledger: "Checking every statement", orbits: "Following runs above the ceiling" });
/** Time between two looks at the ledger while a run plays. */
const LIVE_PANEL = 1500;

export class Talks extends Shows {
  /**
   * @param {any} offered what the server offers
   * @param {import("./types.js").State} state
   */
  constructor(offered, state) {
    super(offered, state);
    const soon = settled(() => this.askMap(), 120);
    this.askMapSoon = () => { $("map").dataset.complete = ""; soon(); };
    this.askAdviceSoon = settled(() => this.askAdvice(), 350);
    this.askPanelSoon = settled(() => this.askPanel(), 150);
    this.socket = new Socket((message) => this.hear(message), (open) => this.connected(open));
  }

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
    if (this.settings.method.name === "flow") {
      this.stopMap("Gradient flow has no learning rate: no map.");
      this.map.clear();
      return;
    }
    this.mapId = ++this.number;
    $("map-stop").hidden = false;
    this.mapAsked = performance.now();
    $("map-text").textContent = "Running the map …";
    this.socket.send({ type: "map", id: this.mapId, settings: { ...this.settings, repetitions: 1, changes: undefined }, axis: this.state.view.axis });
  }

  /** @param {string} words */
  stopMap(words) {
    this.socket.send({ type: "cancel", what: "map" });
    this.mapId = -1;
    $("map-stop").hidden = true;
    $("map-text").textContent = words;
  }

  askAdvice() {
    this.adviceId = ++this.number;
    this.socket.send({ type: "advice", id: this.adviceId, settings: { ...this.settings, changes: undefined } });
  }

  askPanel() {
    const { tab } = this.state.view, run = this.run;
    if (!run) return;
    const id = ++this.number;
    if (tab === "orbits" && !this.orbits) this.socket.send({ type: "orbits", id: this.panelId = id, settings: { ...this.settings, changes: undefined } });
    else if (tab === "ledger") {
      if (!this.ledger) $("panel-text").textContent = "Checking every statement …";
      const until = run.columns.step[this.until(run) - 1];
      this.ledgerAsked = performance.now();
      this.socket.send({ type: "ledger", id: this.panelId = id, slot: this.edited, until: run.facts.steps && run.end && this.head === null ? run.facts.steps : until });
    } else if (tab !== "orbits" && !run.layers) this.socket.send({ type: "layers", id: this.panelId = id, slot: this.edited });
    this.mark("panel");
  }

  /** @param {any} message */
  hear(message) {
    const handler = /** @type {any} */ (this)[`on_${message.type.replaceAll("-", "_")}`];
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

  on_progress(/** @type {any} */ { about, id, share }) {
    const words = share === null ? " …" : `: ${Math.round(100 * share)} %`;
    if (about === "run") this.say(COMPILING, "");
    else if (about === "map" && id === this.mapId) $("map-text").textContent = `Running the map${words}`;
    else if (about === "advice" && id === this.adviceId) { this.testing = true; this.showMarks(); }
    else if (id === this.panelId) {
      $("panel-stop").hidden = false;
      $("panel-text").textContent = `${WORKING[about]}${words}`;
    }
  }

  /** The panel has its answer, or waits for none. */
  panelDone() { this.panelId = -1; $("panel-stop").hidden = true; }

  stopPanel() {
    const { tab } = this.state.view;
    this.socket.send({ type: "cancel", what: ["layers", "eigenvalues"].includes(tab) ? `layers-${this.edited}` : tab });
    this.panelDone();
    $("panel-text").textContent = "Stopped.";
  }

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
    this.testing = false;
    this.mark("controls");
  }

  on_layers(/** @type {any} */ message) {
    const run = this.runs[message.slot];
    if (run && run.id === message.id) { run.layers = message; this.panelDone(); this.mark("panel"); }
  }

  on_ledger(/** @type {any} */ message) { this.ledger = message; this.panelDone(); this.mark("panel"); }

  on_orbits(/** @type {any} */ message) { this.orbits = message; this.panelDone(); this.mark("panel"); }

  on_error(/** @type {any} */ message) {
    if (message.about === "run") { this.waiting = {}; this.playing = false; this.coming = false; this.say(message.message, "wrong"); this.showTransport(); }
    else if (message.about === "map") { $("map-text").textContent = message.message; $("map-stop").hidden = true; }
    else if (message.about === "advice") { this.testing = false; this.showMarks(); }
    else { this.panelDone(); $("panel-text").textContent = message.message; }
  }

  writeAddress() { window.history.replaceState(null, "", `#${stateAddress(this.state)}`); }
}
