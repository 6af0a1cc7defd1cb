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
 * The first records of a column, up to where the page shows the run.
 * @param {Run} run @param {string} name @param {number} until
 */
const part = (run, name, until) => (run.columns[name] ?? []).slice(0, until);

/** x of a run: time of a flow, steps of all others. @param {Run} run @param {number} until */
const across = (run, until) => part(run, run.columns.time ? "time" : "step", until);

/** @param {Run} run @param {string} name @param {string} colour @param {number} until @param {Record<string, any>} more */
function curve(run, name, colour, until, more) {
  const x = across(run, until);
  const traces = [];
  if (run.columns[`${name}_high`]) {
    const style = { mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false, type: "scatter" };
    traces.push({ ...style, x, y: part(run, `${name}_low`, until) });
    traces.push({ ...style, x, y: part(run, `${name}_high`, until), fill: "tonexty", fillcolor: `${colour}33` });
  }
  traces.push({ type: "scatter", mode: "lines", x, y: part(run, name, until), line: { color: colour, width: 1.6 }, ...more });
  return traces;
}

/** @param {Run[]} runs */
function xaxis(runs) {
  const flow = runs.some((run) => run.columns.time);
  const last = Math.max(1, ...runs.map((run) => run.end?.steps ?? run.facts.steps));
  return flow ? { title: { text: "time", standoff: 4 }, autorange: true, rangemode: "tozero" }
    : { title: { text: "step", standoff: 4 }, range: [0, last], autorange: false };
}

/** Horizontal lines with their names at the right end. */
function lines(/** @type {[string, number|null|undefined, string, string][]} */ wanted, /** @type {boolean} */ log) {
  const there = wanted.filter(([, y]) => y !== null && y !== undefined && Number.isFinite(y) && y > 0);
  return {
    shapes: there.map(([, y, color, dash]) => ({
      type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { color, width: 1.4, dash }, layer: "below",
    })),
    annotations: there.map(([text, y, color], i) => ({
      xref: "paper", x: 1, xanchor: "right", y: log ? Math.log10(/** @type {number} */ (y)) : y, yanchor: i % 2 ? "top" : "bottom",
      text, showarrow: false, font: { size: 11, color },
    })),
  };
}

/** The span of a sharpness plot: its lines and the run, but not a run that ran away. */
function span(/** @type {number[]} */ marks, /** @type {(number|null)[]} */ values, /** @type {boolean} */ log) {
  const top = Math.max(...marks);
  const seen = values.filter((v) => v !== null && v > 0 && v < 40 * top).map(Number);
  const high = Math.max(top, ...seen) * 1.25, low = Math.min(...marks, ...seen);
  return log ? [Math.log10(Math.max(low, high / 1e4) / 1.4), Math.log10(high)] : [0, Math.min(high, 4 * top)];
}

/** @param {Record<string, Run>} runs @param {View} view @param {(run: Run) => number} until */
export function drawSharpness(runs, view, until) {
  const c = colours(), list = Object.entries(runs);
  const traces = list.flatMap(([slot, run]) => curve(run, "sharpness", slot === "b" ? c.b : c.a, until(run), {
    name: slot === "b" ? "B" : list.length > 1 ? "A" : "sharpness", showlegend: list.length > 1, hovertemplate: "S = %{y:.5g}<extra></extra>",
  }));
  for (const [slot, run] of list) {
    if (!run.columns.edge?.some((v) => v !== null)) continue;
    traces.push({
      type: "scatter", mode: "lines", x: [...across(run, until(run)), run.end?.steps ?? run.facts.steps],
      y: [...part(run, "edge", until(run)), run.columns.edge[until(run) - 1]],
      line: { color: slot === "b" ? c.b : c.edge, width: 1.6, dash: "dash", shape: "hv" }, showlegend: false,
      hoverinfo: "skip",
    });
  }
  const first = list[0][1], facts = list[list.length - 1][1].facts;
  const edge = first.columns.edge?.[Math.max(0, until(first) - 1)];
  const marks = lines([
    [facts.edge_formula.replace(/eta/g, "η").replace(/beta/g, "β"), edge, c.edge, "dash"],
    ["S<sub>min</sub>", facts.minimal, c.minimum, "solid"],
    ["upper bound", facts.upper, c.bound, "dot"],
    ["lower bound", facts.lower, c.bound, "dot"],
    ["limit of small scale", facts.small_scale, c.limit, "dot"],
  ].filter(([, y], i, all) => i < 2 || apart(y, all)), view.log);
  marks.shapes.shift();
  const values = list.flatMap(([, run]) => run.columns.sharpness.slice(0, until(run)));
  const known = [edge, facts.minimal, ...list.map(([, run]) => run.facts.edge)].filter((v) => v > 0);
  const range = span(known.length ? known : [Math.max(...values.map(Number))], values, view.log);
  return Plotly.react($("sharpness-plot"), traces, layout({
    ...marks, xaxis: xaxis(list.map(([, run]) => run)),
    yaxis: { type: view.log ? "log" : "linear", range, autorange: false, dtick: undefined },
    uirevision: undefined,
  }), CONFIG);
}

/** Lines that would lie on S_min are left out: their numbers are in the text. */
function apart(/** @type {any} */ y, /** @type {any[]} */ all) {
  const least = all[1][1];
  return y && least && Math.abs(Math.log(y / least)) > 0.04;
}

/** @param {Record<string, Run>} runs @param {View} view @param {(run: Run) => number} until */
export function drawRisk(runs, view, until) {
  const c = colours(), list = Object.entries(runs);
  const traces = list.flatMap(([slot, run]) => {
    const colour = slot === "b" ? c.b : c.a;
    const name = list.length > 1 ? slot.toUpperCase() : "R − R<sub>min</sub>";
    const more = { name, showlegend: view.distance || list.length > 1, hovertemplate: "%{y:.4g}<extra></extra>" };
    const drawn = curve(run, "excess_risk", colour, until(run), more);
    if (view.distance) {
      drawn.push({ type: "scatter", mode: "lines", x: across(run, until(run)), y: part(run, "distance", until(run)),
        line: { color: slot === "b" ? c.b : c.limit, width: 1.3, dash: "dot" }, name: `|w − w*|²${list.length > 1 ? ` ${slot.toUpperCase()}` : ""}`, hovertemplate: "%{y:.4g}<extra></extra>" });
    }
    return drawn;
  });
  const facts = list[0][1].facts;
  const values = list.flatMap(([, run]) => run.columns.excess_risk.slice(0, until(run))).filter((v) => v !== null && v > 0).map(Number);
  const top = Math.max(facts.excess_at_zero, ...values.filter((v) => v < 1e4 * facts.excess_at_zero));
  const low = Math.max(Math.min(facts.goal / 3, ...values), top * 1e-26);
  const marks = lines([["w = 0", facts.excess_at_zero, c.bound, "dot"], ["learned", facts.goal, c.minimum, "solid"]], true);
  return Plotly.react($("risk-plot"), traces, layout({
    ...marks, xaxis: xaxis(list.map(([, run]) => run)),
    yaxis: { type: "log", range: [Math.log10(low) - 0.3, Math.log10(top) + 0.3], autorange: false, nticks: 6 },
    uirevision: undefined,
  }), CONFIG);
}

/** The numbers behind a plot, in words, for those who do not see it. @param {Run} run @param {number} until */
export function describe(run, until) {
  const s = run.columns.sharpness?.[until - 1], e = run.columns.excess_risk?.[until - 1];
  return `Step ${run.columns.step[until - 1]}: sharpness ${shown(s)}, excess risk ${shown(e)}`;
}
