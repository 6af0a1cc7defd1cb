/** The page's elements by id, and small words for people. */

/** @param {string} id @returns {any} */
export const $ = (id) => document.getElementById(id);

/** A number for people: four digits. @param {number|null|undefined} value */
export function shown(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2).replace("e+", "e");
  return String(Number(value.toPrecision(4)));
}

let hiding = 0;

/** A short message over the page. @param {string} words */
export function toast(words) {
  const box = $("toast");
  box.textContent = words;
  box.hidden = false;
  clearTimeout(hiding);
  hiding = window.setTimeout(() => { box.hidden = true; }, 3500);
}

/** Call at most once a pause. @param {() => void} work @param {number} wait */
export function settled(work, wait) {
  let timer = 0;
  return () => { clearTimeout(timer); timer = window.setTimeout(work, wait); };
}
