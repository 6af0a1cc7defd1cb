/** The two curves: sharpness with its lines, and the risk. */

import { $, shown } from "./page.js";
import { colours } from "./theme.js";

/** @typedef {import("./types.js").Run} Run */
/** @typedef {import("./types.js").View} View */

export const CONFIG = { displayModeBar: false, responsive: true, doubleClick: "reset", scrollZoom: false };

/** What all plots share. @param {Record<string, any>} more */
export function layout(more = {}) {
  const c = colours();
  const axis = { gridcolor: c.grid, zeroline: false, linecolor: c.grid, tickfont: { size: 11 }, automargin: true, exponentformat: "power" };
  const { xaxis = {}, yaxis = {}, ...rest } = more;
  return {
    margin: { l: 46, r: 12, t: 6, b: 34 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, Segoe UI, Arial, sans-serif", size: 12, color: c.ink },
    legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", font: { size: 11 }, bgcolor: "rgba(0,0,0,0)" },
    hoverlabel: { font: { size: 12 } },
    hovermode: "x",
    dragmode: "zoom",
    uirevision: "stay",
    ...rest,
    xaxis: { ...axis, ...xaxis },
    yaxis: { ...axis, ...yaxis },
  };
}

/**
 * The first entries of a column, up to where the page shows the run.
 * @param {Run} run @param {string} name @param {number} until
 */
const part = (run, name, until) => (run.columns[name] ?? []).slice(0, until);

/** x of a run: time of a flow, steps of all others. @param {Run} run @param {number} until */
const across = (run, until) => part(run, run.columns.time ? "time" : "step", until);

/**
 * One curve: what Plotly and the canvas both draw.
 * @typedef {Object} Curve
 * @property {(number|null)[]} x
 * @property {(number|null)[]} y
 * @property {string} color
 * @property {number} width
 * @property {string} [dash]
 * @property {boolean} [steps]  as stairs
 * @property {(number|null)[]} [low]  of a band
 * @property {(number|null)[]} [high]
 * @property {string} [name]  in the legend
 * @property {string} [hover]
 */

/** @param {Run} run @param {string} name @param {number} until @param {Partial<Curve>} more @returns {Curve} */
function curve(run, name, until, more) {
  const band = run.columns[`${name}_high`] ? { low: part(run, `${name}_low`, until), high: part(run, `${name}_high`, until) } : {};
  return { x: across(run, until), y: part(run, name, until), color: "#000", width: 1.6, ...band, ...more };
}

/** @param {Curve} one */
function traces(one) {
  const found = [];
  if (one.high) {
    const style = { type: "scatter", mode: "lines", x: one.x, line: { width: 0 }, hoverinfo: "skip", showlegend: false };
    found.push({ ...style, y: one.low }, { ...style, y: one.high, fill: "tonexty", fillcolor: `${one.color}33` });
  }
  found.push({
    type: "scatter", mode: "lines", x: one.x, y: one.y, name: one.name ?? "", showlegend: Boolean(one.name),
    line: { color: one.color, width: one.width, dash: one.dash ?? "solid", shape: one.steps ? "hv" : "linear" },
    ...(one.hover ? { hovertemplate: `${one.hover}<extra></extra>` } : { hoverinfo: "skip" }),
  });
  return found;
}

/** Axes for curves that move before Plotly is there to draw any. @param {any} box @param {any} form */
function bare(box, form) {
  const { l, r, t, b } = form.margin;
  const axis = (/** @type {any} */ { type, range = [0, 1] }, /** @type {number} */ from, /** @type {number} */ length, /** @type {boolean} */ up) => ({
    _offset: from, _length: length, d2p: (/** @type {number} */ v) => {
      const share = ((type === "log" ? Math.log10(v) : v) - range[0]) / (range[1] - range[0]);
      return length * (up ? 1 - share : share);
    },
  });
  return { xaxis: axis(form.xaxis, l, box.clientWidth - l - r, false), yaxis: axis(form.yaxis, t, box.clientHeight - t - b, true) };
}

/** Time between two layouts of axes while curves move. */
const AXES_PAUSE = 800;

/**
 * A plot that Plotly draws when things stand still. While they move its axes stay and the curves are
 * painted on a canvas over them, which takes a millisecond instead of many.
 */
export class Moving {
  /** @param {string} id */
  constructor(id) {
    this.box = $(id);
    this.canvas = document.createElement("canvas");
    this.canvas.className = "moving";
    this.laid = 0;
    this.signature = "";
  }

  /** @param {Curve[]} curves @param {any} form @param {boolean} still */
  draw(curves, form, still) {
    if (!window.Plotly) {
      if (!this.canvas.parentElement) this.box.append(this.canvas);
      this.paint(curves, bare(this.box, form));
      return;
    }
    if (still) {
      this.canvas.remove();
      this.signature = "";
      Plotly.react(this.box, curves.flatMap(traces), form, CONFIG);
      return;
    }
    const now = performance.now(), signature = JSON.stringify([form.xaxis, form.yaxis, form.annotations, form.shapes, form.font]);
    const first = this.signature === "";
    if (first) this.canvas.remove();
    if (first || (signature !== this.signature && now - this.laid > AXES_PAUSE)) {
      Plotly.react(this.box, [{ x: [null], y: [null], type: "scatter", showlegend: false }], form, CONFIG);
      this.signature = signature;
      this.laid = now;
    }
    if (!this.canvas.parentElement) this.box.append(this.canvas);
    this.paint(curves, this.box._fullLayout);
  }

  /** @param {Curve[]} curves @param {any} full where the axes are */
  paint(curves, full) {
    const { clientWidth: width, clientHeight: height } = this.box;
    const pen = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    const sharp = window.devicePixelRatio || 1;
    this.canvas.width = width * sharp;
    this.canvas.height = height * sharp;
    pen.scale(sharp, sharp);
    const { xaxis, yaxis } = full;
    pen.beginPath();
    pen.rect(xaxis._offset, yaxis._offset, xaxis._length, yaxis._length);
    pen.clip();
    pen.lineJoin = "round";
    const px = (/** @type {number} */ v) => xaxis._offset + xaxis.d2p(v);
    const py = (/** @type {number} */ v) => yaxis._offset + yaxis.d2p(v);
    for (const one of curves) {
      if (one.high && one.low) {
        pen.beginPath();
        const there = one.x.map((_, i) => i).filter((i) => one.high?.[i] !== null && one.low?.[i] !== null);
        there.forEach((i, k) => pen[k ? "lineTo" : "moveTo"](px(Number(one.x[i])), py(Number(one.high?.[i]))));
        there.reverse().forEach((i) => pen.lineTo(px(Number(one.x[i])), py(Number(one.low?.[i]))));
        pen.fillStyle = `${one.color}33`;
        pen.fill();
      }
      pen.beginPath();
      let down = false, last = 0;
      one.x.forEach((x, i) => {
        const y = one.y[i];
        if (x === null || y === null || y === undefined) { down = false; return; }
        const at = py(y);
        if (down && one.steps) pen.lineTo(px(x), last);
        pen[down ? "lineTo" : "moveTo"](px(x), at);
        down = true;
        last = at;
      });
      pen.strokeStyle = one.color;
      pen.lineWidth = one.width;
      pen.setLineDash(one.dash === "dash" ? [9, 7] : one.dash === "dot" ? [2, 3] : []);
      pen.stroke();
    }
  }
}

/** @param {Run[]} runs */
function xaxis(runs) {
  const flow = runs.some((run) => run.columns.time);
  const last = Math.max(1, ...runs.map((run) => run.end?.steps ?? run.facts.steps));
  return flow ? { title: { text: "time", standoff: 4 }, autorange: true, rangemode: "tozero" }
    : { title: { text: "step", standoff: 4 }, range: [0, last], autorange: false };
}

/** Room for the names of lines at the right, and the height of one. */
const NAMES = 74, NAME = 13;

/**
 * Horizontal lines, named with their numbers beside the plot, where names do not cover each other.
 * @param {[string, number|null|undefined, string, string, string][]} wanted name, value, colour, dash, and what it is
 * @param {boolean} log @param {number[]} range of the axis @param {string} id of the plot
 */
function lines(wanted, log, range, id) {
  const place = (/** @type {any} */ y) => ((log ? Math.log10(y) : y) - range[0]) / (range[1] - range[0]) * ($(id).clientHeight - 40);
  const there = wanted.filter(([, y]) => y !== null && y !== undefined && Number.isFinite(y) && y > 0 && place(y) > -1 && place(y) < $(id).clientHeight - 39)
    .map((one) => ({ one, at: place(one[1]), put: place(one[1]) })).sort((p, q) => p.at - q.at);
  for (let round = 0; round < 20; round += 1) {
    for (let i = 1; i < there.length; i += 1) {
      const short = NAME - (there[i].put - there[i - 1].put);
      if (short > 0) { there[i].put += short / 2; there[i - 1].put -= short / 2; }
    }
  }
  return {
    shapes: there.map(({ one: [, y, color, dash] }) => ({
      type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { color, width: 1.4, dash }, layer: "above",
    })).sort((p, q) => Number(p.line.dash === "solid") - Number(q.line.dash === "solid")),
    annotations: there.map(({ one: [text, y, color, , what], at, put }) => ({
      xref: "paper", x: 1, xanchor: "left", y: log ? Math.log10(/** @type {number} */ (y)) : y, yanchor: "middle", yshift: Math.round(put - at), xshift: 2,
      text, hovertext: `${what}: ${shown(y)}`, showarrow: false, font: { size: 11, color }, borderpad: 0,
    })),
  };
}

/** The span of a sharpness plot: its lines and the run, but not a run that ran away. */
function span(/** @type {number[]} */ marks, /** @type {number[]} */ reach, /** @type {boolean} */ log) {
  const top = Math.max(...marks);
  const high = Math.max(top, ...reach.filter((v) => v < 40 * top)) * 1.3, low = Math.min(...marks, ...reach);
  return log ? [Math.log10(Math.max(low, high / 1e4) / 1.5), Math.log10(high)] : [0, Math.min(high, 4 * top)];
}

const formula = (/** @type {string} */ text) => text.replace(/eta/g, "η").replace(/bη/g, "β");

/**
 * Sharpness with its lines.
 * @param {Record<string, Run>} runs @param {View} view @param {(run: Run) => number} until
 * @returns {[Curve[], any]}
 */
export function sharpnessPlot(runs, view, until) {
  const c = colours(), list = Object.entries(runs), several = list.length > 1;
  const curves = list.map(([slot, run]) => curve(run, "sharpness", until(run), {
    color: slot === "b" ? c.b : c.a, width: 1.3, name: several ? slot.toUpperCase() : undefined, hover: "S = %{y:.5g}",
  }));
  for (const [slot, run] of list) {
    const edges = part(run, "edge", until(run));
    if (!edges.some((v) => v !== null)) continue;
    curves.push({
      x: [...across(run, until(run)), run.end?.steps ?? run.facts.steps], y: [...edges, edges[edges.length - 1]],
      color: slot === "b" ? c.b : c.edge, width: 1.6, dash: "dash", steps: true,
    });
  }
  const run = list[list.length - 1][1], { facts } = run;
  const edge = run.columns.edge?.[until(run) - 1] ?? null;
  const known = /** @type {number[]} */ ([edge, facts.minimal, facts.edge].filter((v) => v > 0));
  const reach = list.flatMap(([, one]) => one.extent?.sharpness ?? []);
  if (facts.upper && facts.upper < 3 * Math.max(...known)) reach.push(facts.upper);
  const range = span(known.length ? known : [Math.max(1e-9, ...reach)], reach, view.log);
  const rule = formula(facts.edge_formula), value = (/** @type {any} */ y) => (y ? Number(y).toPrecision(4).replace(/\.?0+$/, "") : "");
  const marks = lines([
    [`${rule.length < 5 ? rule : "edge"} ${value(edge)}`, edge, several ? c.b : c.edge, "dash", `the edge of stability, ${rule}`],
    [`S<sub>min</sub> ${value(facts.minimal)}`, facts.minimal, c.minimum, "solid", "the flattest minimiser"],
    [`upper ${value(facts.upper)}`, facts.upper, c.soft, "dot", "upper bound on S_min"],
    [`lower ${value(facts.lower)}`, facts.lower, c.soft, "dot", "lower bound on S_min"],
    [`limit ${value(facts.small_scale)}`, facts.small_scale, c.limit, "dashdot", "from vanishing scale"],
  ], view.log, range, "sharpness-plot");
  marks.shapes = marks.shapes.filter((one) => one.y0 !== edge);
  return [curves, layout({
    ...marks, margin: { l: 46, r: NAMES, t: 6, b: 34 }, xaxis: xaxis(list.map(([, one]) => one)),
    yaxis: { type: view.log ? "log" : "linear", range, autorange: false, tickformat: "~g", ...(view.log ? { dtick: range[1] - range[0] < 2.2 ? "D2" : 1 } : { nticks: 6 }) },
  })];
}

/**
 * The risk, and the distance if it is asked for.
 * @param {Record<string, Run>} runs @param {View} view @param {(run: Run) => number} until
 * @returns {[Curve[], any]}
 */
export function riskPlot(runs, view, until) {
  const c = colours(), list = Object.entries(runs), several = list.length > 1;
  const curves = list.flatMap(([slot, run]) => {
    const name = several ? slot.toUpperCase() : view.distance ? "R − R<sub>min</sub>" : undefined;
    const found = [curve(run, "excess_risk", until(run), { color: slot === "b" ? c.b : c.a, name, hover: "%{y:.4g}" })];
    if (view.distance) {
      found.push({
        x: across(run, until(run)), y: part(run, "distance", until(run)), color: slot === "b" ? c.b : c.limit, width: 1.3, dash: "dot",
        name: `|w − w*|²${several ? ` ${slot.toUpperCase()}` : ""}`, hover: "%{y:.4g}",
      });
    }
    return found;
  });
  const { facts } = list[0][1];
  const reach = list.flatMap(([, one]) => one.extent?.excess_risk ?? []);
  const top = Math.max(facts.excess_at_zero, ...reach.filter((v) => v < 1e4 * facts.excess_at_zero));
  const low = Math.max(Math.min(facts.goal / 3, ...reach), top * 1e-26);
  const range = [Math.log10(low) - 0.4, Math.log10(top) + 0.6];
  const marks = lines([["w = 0", facts.excess_at_zero, c.soft, "dot", "the risk of w = 0"], ["learned", facts.goal, c.minimum, "solid", "counts as learned"]], true, range, "risk-plot");
  return [curves, layout({
    ...marks, margin: { l: 46, r: NAMES, t: 6, b: 34 }, xaxis: xaxis(list.map(([, one]) => one)),
    yaxis: { type: "log", range, autorange: false, nticks: 6, tickfont: { size: 9 } },  // powers are drawn a quarter larger
  })];
}
