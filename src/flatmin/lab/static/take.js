/** Take it away: the address, Python, the command, pictures, a table. */

import { $, toast } from "./page.js";
import { ask } from "./socket.js";
import { colours } from "./theme.js";

/** @param {string} text @param {string} what */
export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const box = document.createElement("textarea");
    box.value = text;
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
  }
  toast(`${what} copied.`);
}

/** @param {any} settings @param {"python"|"command"} kind */
export async function copyCode(settings, kind) {
  const found = await (await ask("/api/code", { settings })).json();
  await copy(found[kind], kind === "python" ? "Python" : "Command");
}

/** @param {any} settings */
export async function saveCsv(settings) {
  save(await (await ask("/api/csv", { settings })).blob(), "run.csv");
}

/** @param {Blob} blob @param {string} name */
function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

const PLOTS = ["sharpness-plot", "risk-plot", "map", "panel-plot"];

/** Every plot on the screen in one picture, two columns. @param {"png"|"svg"} format */
export async function savePicture(format) {
  const shown = PLOTS.map($).filter((plot) => plot.data && plot.offsetParent);
  const parts = await Promise.all(shown.map(async (plot) => {
    const url = await Plotly.toImage(plot, { format: "svg", width: plot.clientWidth, height: plot.clientHeight });
    return { text: decodeURIComponent(url.slice(url.indexOf(",") + 1)), width: plot.clientWidth, height: plot.clientHeight };
  }));
  const columns = [parts.slice(0, 2), parts.slice(2)];
  const wide = columns.map((column) => Math.max(0, ...column.map((one) => one.width)));
  const tall = Math.max(...columns.map((column) => column.reduce((sum, one) => sum + one.height + 8, 0)));
  let x = 0;
  const inner = columns.map((column, i) => {
    let y = 0;
    const placed = column.map((one) => {
      const text = one.text.replace(/<svg /, `<svg x="${x}" y="${y}" `);
      y += one.height + 8;
      return text;
    });
    x += wide[i] + 8;
    return placed.join("");
  }).join("");
  const width = wide[0] + wide[1] + 8;
  const svg = `<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="${width}" height="${tall}" viewBox="0 0 ${width} ${tall}">`
    + `<rect width="100%" height="100%" fill="${colours().card}"/>${inner}</svg>`;
  const blob = new Blob([svg], { type: "image/svg+xml" });
  if (format === "svg") { save(blob, "flatmin-lab.svg"); return; }
  const image = new Image();
  image.src = URL.createObjectURL(blob);
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = 2 * width; canvas.height = 2 * tall;
  canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(image.src);
  canvas.toBlob((found) => { if (found) save(found, "flatmin-lab.png"); }, "image/png");
}
