/** All that the address holds, with undo and redo. */

/** @typedef {import("./types.js").State} State */

const MOST_UNDO = 200;

export const TABS = ["layers", "eigenvalues", "ledger", "orbits"];

/** @template T @param {T} value @returns {T} */
export const clone = (value) => structuredClone(value);

/** @param {string} text */
function readsAsJson(text) {
  try { JSON.parse(text); return true; } catch { return false; }
}

/** @param {Record<string, any>} content @param {string} prefix @returns {[string, any][]} */
function pairs(content, prefix = "") {
  return Object.entries(content).flatMap(([key, value]) =>
    value !== null && typeof value === "object" && !Array.isArray(value)
      ? pairs(value, `${prefix}${key}.`) : /** @type {[string, any][]} */ ([[prefix + key, value]]));
}

/**
 * Nested plain values as key=value pairs (lab/settings.py has the same in Python).
 * @param {Record<string, any>} content
 */
export function address(content) {
  return pairs(content).filter(([, value]) => value !== null && value !== undefined).map(([key, value]) => {
    const text = typeof value === "string" && !readsAsJson(value) ? value : JSON.stringify(value);
    return `${key}=${encodeURIComponent(text).replace(/%(2C|3A|5B|5D)/g, decodeURIComponent)}`;
  }).join("&");
}

/** @param {string} text @returns {Record<string, any>} */
export function fromAddress(text) {
  /** @type {Record<string, any>} */
  const content = {};
  for (const word of text.replace(/^#/, "").split("&")) {
    const cut = word.indexOf("=");
    if (cut < 1) continue;
    const plain = decodeURIComponent(word.slice(cut + 1));
    const folders = word.slice(0, cut).split(".");
    const last = /** @type {string} */ (folders.pop());
    if ([...folders, last].includes("__proto__")) continue;
    /** @type {any} */
    let place = content;
    for (const name of folders) {
      place = place[name] ??= {};
      if (!isTable(place)) throw new Error(`${folders.join(".")} does not fit what is before it`);
    }
    place[last] = readsAsJson(plain) ? JSON.parse(plain) : plain;
  }
  return content;
}

/** The state as one flat address: the settings of A, those of B after `b.`, the view after `view.`. */
export function stateAddress(/** @type {State} */ state) {
  return address({ ...state.a, b: state.b ?? undefined, view: state.view });
}

/** @param {any} value */
const isTable = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** Whether a form can show this. @param {any} settings */
const isRun = (settings) => isTable(settings) && ["problem", "architecture", "initialisation", "method"].every((name) => isTable(settings[name]));

/**
 * The state of an address: the usual one if it is empty; if it is damaged too, and `complain` is told.
 * @param {string} text @param {State} usual @param {(words: string) => void} complain @returns {State}
 */
export function stateOf(text, usual, complain) {
  if (text.length < 2) return clone(usual);
  try {
    const { b, view, ...a } = fromAddress(text);
    if (!isRun(a)) throw new Error("it holds no whole run");
    const seen = { ...usual.view, scene: undefined };
    for (const [name, value] of Object.entries(isTable(view) ? view : {})) {
      if (name === "scene" || typeof value === typeof (/** @type {any} */ (seen)[name])) /** @type {any} */ (seen)[name] = value;
    }
    if (!TABS.includes(seen.tab)) seen.tab = usual.view.tab;
    return { a: /** @type {any} */ (a), b: isRun(b) ? b : null, view: seen };
  } catch (error) {
    complain(`The address is damaged: ${/** @type {Error} */ (error).message}.`);
    return clone(usual);
  }
}

export class History {
  /** @param {State} state */
  constructor(state) {
    this.state = state;
    /** @type {string[]} */
    this.past = [];
    /** @type {string[]} */
    this.future = [];
    this.kept = JSON.stringify(state);
  }

  /** Remember the state as it is now, if it has changed. */
  keep() {
    const now = JSON.stringify(this.state);
    if (now === this.kept) return;
    this.past.push(this.kept);
    this.past.splice(0, Math.max(0, this.past.length - MOST_UNDO));
    this.future = [];
    this.kept = now;
  }

  /** @param {string[]} from @param {string[]} to */
  move(from, to) {
    const text = from.pop();
    if (text === undefined) return false;
    to.push(this.kept);
    this.kept = text;
    this.state = JSON.parse(text);
    return true;
  }

  undo() { this.keep(); return this.move(this.past, this.future); }
  redo() { return this.move(this.future, this.past); }
}
