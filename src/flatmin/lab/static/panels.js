/** The panels beside the run: layers, eigenvalues, the ledger, and above the ceiling. */

import { $, shown } from "./page.js";
import { CONFIG, layout } from "./plots.js";
import { colours, isDark, STEPS } from "./theme.js";

/** @typedef {import("./types.js").Run} Run */

/** A colour between two ends of the scale. @param {number} share */
function shade(share) {
  const place = share * (STEPS.length - 1), low = Math.min(STEPS.length - 2, Math.floor(place)), t = place - low;
  const mix = [1, 3, 5].map((k) => {
    const from = parseInt(STEPS[low].slice(k, k + 2), 16), to = parseInt(STEPS[low + 1].slice(k, k + 2), 16);
    return Math.round(from + t * (to - from));
  });
  return `rgb(${mix.join(",")})`;
}

/** @param {any} found @param {number} until the last step (or time) to show */
const seen = (found, until) => {
  const count = found.at.filter((/** @type {number} */ at) => at <= until + 1e-9).length;
  return (/** @type {number[]} */ row) => row.slice(0, count);
};

/** @param {Run} run @param {number} until @param {number} end */
export function drawLayers(run, until, end) {
  const found = run.layers, cut = seen(found, until), x = cut(found.at), depth = found.first.length;
  const night = isDark();
  const colour = (/** @type {number} */ k) => shade(night ? 0.25 + 0.75 * (depth > 1 ? k / (depth - 1) : 0) : 0.85 * (depth > 1 ? k / (depth - 1) : 0));
  /** @type {any[]} */
  const traces = [];
  found.first.forEach((/** @type {number[]} */ row, /** @type {number} */ k) => traces.push({
    type: "scatter", mode: "lines", x, y: cut(row), line: { color: colour(k), width: 1.8 }, name: `layer ${k + 1}`, showlegend: false,
    hovertemplate: `layer ${k + 1}: σ₁ = %{y:.4g}<extra></extra>`,
  }));
  found.second.forEach((/** @type {number[]} */ row, /** @type {number} */ k) => traces.push({
    type: "scatter", mode: "lines", x, y: cut(row), line: { color: colour(k), width: 1, dash: "dot" }, showlegend: false, hoverinfo: "skip",
  }));
  found.alignment.forEach((/** @type {number[]} */ row, /** @type {number} */ k) => traces.push({
    type: "scatter", mode: "lines", x, y: cut(row), yaxis: "y2", line: { color: colour(k), width: 1.4 }, showlegend: false,
    hovertemplate: `layers ${k + 1}, ${k + 2}: %{y:.4g}<extra></extra>`,
  }));
  const c = colours();
  const both = layout({
    xaxis: { range: [0, end], autorange: false, title: { text: run.columns.time ? "time" : "step", standoff: 4 }, anchor: "y2" },
    yaxis: { domain: [0.5, 1], title: { text: "σ₁, σ₂ (dotted)", font: { size: 11 } }, rangemode: "tozero", nticks: 5 },
    hovermode: "closest",
  });
  Plotly.react($("panel-plot"), traces, {
    ...both, yaxis2: { ...both.yaxis, domain: [0, 0.42], range: [-0.03, 1.05], autorange: false, title: { text: "alignment", font: { size: 11 } }, gridcolor: c.grid },
  }, CONFIG);
  $("panel-text").textContent = "One line a layer, dark to light from the input. Alignment: ⟨v of the next layer, u⟩².";
}

/** @param {Run} run @param {number} until @param {number} end @param {boolean} log */
export function drawEigenvalues(run, until, end, log) {
  const found = run.layers, c = colours();
  const cut = seen({ at: found.eigenvalues_at }, until), x = cut(found.eigenvalues_at);
  const traces = found.eigenvalues.map((/** @type {number[]} */ row, /** @type {number} */ k) => ({
    type: "scatter", mode: "lines", x, y: cut(row).map((v) => (log && !(v > 0) ? null : v)), name: `λ${"₁₂₃₄"[k]}`,
    line: { color: [c.a, c.minimum, c.limit, c.soft][k], width: 2 - 0.25 * k, dash: ["solid", "dot", "dashdot", "longdashdot"][k] }, hovertemplate: "%{y:.4g}<extra></extra>",
  }));
  const steps = run.columns.step, edge = (run.columns.edge ?? []).filter((_, i) => Number(steps[i]) <= until);
  if (edge.some((v) => v !== null)) {
    traces.push({
      type: "scatter", mode: "lines", x: [...steps.slice(0, edge.length), end], y: [...edge, edge.at(-1)], name: "edge of stability",
      line: { color: c.edge, dash: "dash", width: 1.6, shape: "hv" }, hoverinfo: "skip",
    });
  }
  const all = traces.flatMap((/** @type {any} */ one) => one.y).filter((/** @type {any} */ v) => v > 0).map(Math.log10);
  const decades = Math.max(...all) - Math.min(...all);
  Plotly.react($("panel-plot"), traces, layout({
    margin: { l: 46, r: 12, t: 24, b: 34 },
    xaxis: { range: [0, end], autorange: false, title: { text: run.columns.time ? "time" : "step", standoff: 4 } },
    yaxis: { type: log ? "log" : "linear", autorange: true, tickformat: "~g", ...(log ? { dtick: decades < 2.2 ? "D2" : Math.ceil(decades / 5) } : { nticks: 6 }) },
  }), CONFIG);
  $("panel-text").textContent = "The largest eigenvalues of the Hessian.";
}

/** @param {any} message */
export function drawLedger(message) {
  const rows = [...message.rows].sort((p, q) => Number(q.applies) - Number(p.applies));
  const table = document.createElement("table");
  const head = table.createTHead().insertRow();
  for (const word of ["Statement", "", "Slack", "Where it is tightest"]) {
    const cell = document.createElement("th");
    cell.textContent = word;
    head.append(cell);
  }
  const body = table.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    if (!row.applies) line.className = "idle";
    const link = document.createElement("a");
    link.href = `/statements/${encodeURIComponent(row.statement)}`;
    link.target = "_blank";
    link.rel = "noopener";
    link.textContent = row.title;
    line.insertCell().append(link);
    const verdict = line.insertCell();
    verdict.className = `verdict ${row.verdict.replace(/ /g, "-")}`;
    verdict.textContent = row.verdict === "not applicable" ? "" : row.verdict;
    const slack = line.insertCell();
    slack.className = "number";
    slack.textContent = row.applies && row.slack !== null ? shown(row.slack) : "";
    line.insertCell().textContent = row.at;
  }
  $("panel-table").replaceChildren(table);
  const applied = rows.filter((row) => row.applies);
  const broken = rows.filter((row) => row.verdict === "violated");
  $("panel-text").textContent = `Up to step ${message.until}: ${applied.length} of ${rows.length} statements apply; `
    + (broken.length ? `violated: ${broken.map((row) => row.title).join(", ")}.` : "none of them is violated.")
    + " Slack 0 is equality, 1 a factor of two to spare.";
}

/** @param {any} found @param {number|null} here the rate over the ceiling */
export function drawOrbits(found, here) {
  const c = colours(), night = isDark(), last = found.relative_rates.at(-1);
  const z = found.visits.map((/** @type {number[]} */ row) => row.map((v) => (v ? Math.log1p(v) : null)));
  const text = found.visits.map(() => found.kinds);
  const traces = [{
    type: "heatmap", x: found.relative_rates, y: found.shares, z, text, showscale: false, hovertemplate: "%{x:.3f} times the ceiling: %{text}<extra></extra>", hoverongaps: false,
    colorscale: night ? [[0, "#3d6f94"], [1, "#d6f0ff"]] : [[0, "#7fb2d3"], [1, "#00304d"]],
  }];
  const mark = (/** @type {number} */ x, /** @type {string} */ color, /** @type {string} */ dash) => ({ type: "line", yref: "paper", y0: 0, y1: 1, x0: x, x1: x, line: { color, dash, width: 1.4 } });
  Plotly.react($("panel-plot"), traces, layout({
    xaxis: { title: { text: "rate over the ceiling", standoff: 4 }, showgrid: false, range: [found.relative_rates[0], last + 0.02], autorange: false },
    yaxis: { title: { text: "w'Σw* / w*'Σw*", font: { size: 11 } }, showgrid: false },
    shapes: [mark(1, c.minimum, "solid"), ...(here && here < last ? [mark(here, c.edge, "dash")] : [])],
    hovermode: "closest",
  }), CONFIG);
  $("panel-text").textContent = `From beside the flattest minimiser, in multiples of the ceiling: ${found.sentence}.`;
}
