/** The map: how runs end, over the rate and one other setting. */

import { $, shown } from "./page.js";
import { CONFIG, layout } from "./plots.js";
import { colours, STATE_COLOURS, STEPS } from "./theme.js";

const NAMES = /** @type {Record<string, string>} */ ({ scale: "scale", depth: "depth", condition_number: "condition number" });

/** S/S_min from 1 to this has a colour of its own. */
const MOST_RATIO = 3;

export class RunMap {
  /** @param {(rate: number, value: number, axis: string) => void} watch */
  constructor(watch) {
    this.watch = watch;
    /** @type {any} */
    this.plan = null;
    /** @type {any} */
    this.pixels = null;
    this.cursor = null;
    this.colour = "state";
    /** @type {{rate: number, value: number}|null} */
    this.here = null;
    this.wired = false;
    $("map").addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.key(event));
  }

  /** @param {any} plan */
  begin(plan) { this.plan = plan; this.pixels = null; this.cursor = null; }

  clear() { this.pixels = null; if (this.plan) window.Plotly?.react($("map"), [], layout({ xaxis: { visible: false }, yaxis: { visible: false } }), CONFIG); }

  /** @param {any} pixels */
  show(pixels) { this.pixels = pixels; this.draw(); }

  get xs() { return this.plan.rates.filter((/** @type {number} */ _, /** @type {number} */ i) => i % this.pixels.stride === 0); }
  get ys() { return this.plan.values.filter((/** @type {number} */ _, /** @type {number} */ i) => i % this.pixels.stride === 0); }

  draw() {
    if (!this.plan || !this.pixels || !window.Plotly) return;
    const c = colours(), { states, ceilings, axis, values } = this.plan;
    const byState = this.colour === "state";
    const x = this.xs, y = this.ys;
    const text = this.pixels.state.map((/** @type {number[]} */ row, /** @type {number} */ j) => row.map((state, i) => this.words(i, j, state)));
    /** @type {any} */
    const heat = { type: "heatmap", x, y, text, hovertemplate: "%{text}<extra></extra>", xgap: 0, ygap: 0 };
    if (byState) {
      heat.z = this.pixels.state;
      heat.zmin = -0.5; heat.zmax = states.length - 0.5;
      heat.colorscale = states.flatMap((/** @type {keyof STATE_COLOURS} */ name, /** @type {number} */ i) =>
        [[i / states.length, STATE_COLOURS[name]], [(i + 1) / states.length, STATE_COLOURS[name]]]);
      heat.showscale = false;
    } else {
      heat.z = this.pixels.ratio;
      heat.zmin = 1; heat.zmax = MOST_RATIO;
      heat.colorscale = STEPS.map((colour, i) => [i / (STEPS.length - 1), colour]);
      heat.colorbar = { thickness: 10, outlinewidth: 0, tickfont: { size: 10 }, ticks: "", len: 0.95 };
    }
    const traces = [heat];
    if (ceilings.some((/** @type {number|null} */ v) => v !== null)) {
      const edge = { type: "scatter", mode: "lines", x: ceilings, y: values, hoverinfo: "skip", showlegend: false };
      traces.push({ ...edge, line: { color: "#ffffff", width: 4 } }, { ...edge, line: { color: "#000000", width: 1.6, dash: "dash" } });
    }
    for (const [point, symbol] of /** @type {[any, string][]} */ ([[this.here, "circle-open"], [this.cursor && { rate: x[this.cursor.i], value: y[this.cursor.j] }, "square-open"]])) {
      if (!point) continue;
      const mark = { type: "scatter", mode: "markers", x: [point.rate], y: [point.value], hoverinfo: "skip", showlegend: false };
      traces.push({ ...mark, marker: { size: 13, symbol, color: "#ffffff", line: { width: 4, color: "#ffffff" } } },
        { ...mark, marker: { size: 13, symbol, color: "#000000", line: { width: 2, color: "#000000" } } });
    }
    const legend = byState ? states.map((/** @type {keyof STATE_COLOURS} */ name) => `<span style="color:${STATE_COLOURS[name]}">■</span> ${name}`).join("  ") : "S / S<sub>min</sub> at the end";
    const half = (/** @type {number[]} */ v) => Math.sqrt(v[1] / v[0]);
    Plotly.react($("map"), traces, layout({
      margin: { l: 48, r: byState ? 10 : 44, t: 24, b: 34 }, hovermode: "closest", dragmode: false,
      annotations: [{ text: legend, xref: "paper", yref: "paper", x: 0, xanchor: "left", y: 1, yanchor: "bottom", showarrow: false, font: { size: $("map").clientWidth < 400 ? 9.5 : 11 } },
        ...(ceilings[0] ? [{ text: "ceiling", x: Math.log10(ceilings.at(-1)), y: Math.log10(values.at(-1)), xanchor: "left", yanchor: "top", showarrow: false, font: { size: 11, color: "#ffffff" }, bgcolor: "#000000aa" }] : [])],
      xaxis: { type: "log", title: { text: "learning rate", standoff: 4 }, showgrid: false, tickformat: "~g", dtick: "D2", range: [Math.log10(x[0] / half(x)), Math.log10(x.at(-1) * half(x))] },
      yaxis: { type: "log", title: { text: NAMES[axis], standoff: 6 }, showgrid: false, tickformat: "~g", dtick: "D2",
        range: [Math.log10(y[0] / half(y)), Math.log10(y.at(-1) * half(y.slice(-2)))] },
    }), { ...CONFIG, doubleClick: false });
    if (!this.wired) {
      this.wired = true;
      $("map").on("plotly_click", (/** @type {any} */ event) => {
        const point = event.points[0];
        this.watch(point.x, point.y, this.plan.axis);
      });
      $("map").on("plotly_hover", (/** @type {any} */ event) => { if (event.points[0].text) $("map-text").textContent = event.points[0].text; });
    }
  }

  /** @param {number} i @param {number} j @param {number} state */
  words(i, j, state) {
    const ratio = this.pixels.ratio[j][i], excess = this.pixels.excess[j][i];
    const end = state < 0 ? "" : this.plan.states[state];
    return `η ${shown(this.xs[i])}, ${NAMES[this.plan.axis]} ${shown(this.ys[j])}: ${end}`
      + (ratio === null ? "" : `, S/S_min ${shown(ratio)}`) + (excess === null ? "" : `, risk ${shown(excess)}`);
  }

  /** Arrows move a cursor, Enter watches the run under it. @param {KeyboardEvent} event */
  key(event) {
    if (!this.pixels) return;
    const move = /** @type {Record<string, [number, number]>} */ ({ ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] })[event.key];
    const columns = this.xs.length, rows = this.ys.length;
    this.cursor ??= { i: columns >> 1, j: rows >> 1 };
    this.cursor = { i: Math.min(this.cursor.i, columns - 1), j: Math.min(this.cursor.j, rows - 1) };
    if (move) {
      this.cursor.i = Math.min(columns - 1, Math.max(0, this.cursor.i + move[0]));
      this.cursor.j = Math.min(rows - 1, Math.max(0, this.cursor.j + move[1]));
    } else if (event.key === "Enter") {
      this.watch(this.xs[this.cursor.i], this.ys[this.cursor.j], this.plan.axis);
    } else if (event.key !== "Home") return;
    event.preventDefault();
    $("map-text").textContent = this.words(this.cursor.i, this.cursor.j, this.pixels.state[this.cursor.j][this.cursor.i]);
    this.draw();
  }
}
