/** What the person does. */

import { setTable } from "./controls.js";
import { $, toast } from "./page.js";
import { SPEEDS } from "./shows.js";
import { ask } from "./socket.js";
import { clone } from "./state.js";
import { Talks } from "./talks.js";

/** @typedef {import("./types.js").Settings} Settings */

export class Acts extends Talks {
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
    if (done) this.mark("map");
  }

  /** @param {number} rate @param {number} value @param {string} axis */
  watch(rate, value, axis) {
    const s = this.settings;
    s.changes = undefined;
    s.method.learning_rate = rate;
    if (axis === "scale") s.initialisation.scale = value;
    else if (axis === "depth") s.architecture.depth = value;
    else s.problem = { ...this.map.plan.problem, condition_number: value };
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
    else if (this.coming) {
      for (const slot of ["a", "b"]) this.socket.send({ type: "cancel", what: `run-${slot}` });
      this.coming = false;
      this.waiting = {};
      this.showTransport();
      this.say("Stopped.", "");
      return;
    }
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
    window.Plotly?.purge($("panel-plot"));
    $("panel-text").textContent = "";
    this.askPanel();
  }
}
