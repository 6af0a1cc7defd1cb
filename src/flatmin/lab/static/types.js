/**
 * Shapes of what is passed about. (Only comments: nothing here runs.)
 *
 * @typedef {Object} Settings  One run, as a study's file has it.
 * @property {number} seed
 * @property {number} [repetitions]
 * @property {Record<string, any>} problem
 * @property {Record<string, any>} architecture
 * @property {Record<string, any>} initialisation
 * @property {Record<string, any>} method
 * @property {[number, number][]} [changes]  (step, learning rate from there on)
 *
 * @typedef {Object} View  What of the page is open.
 * @property {string} axis
 * @property {string} colour
 * @property {string} tab
 * @property {boolean} log
 * @property {boolean} distance
 * @property {string} [scene]
 *
 * @typedef {Object} State  All that the address holds.
 * @property {Settings} a
 * @property {Settings|null} b
 * @property {View} view
 *
 * @typedef {Record<string, (number|null)[]>} Columns
 *
 * @typedef {Object} Run  What the page has of a run.
 * @property {number} id
 * @property {Record<string, any>} facts
 * @property {Columns} columns
 * @property {number} count
 * @property {Record<string, any>|null} end
 * @property {string} sentence
 * @property {number|null} edgeRate
 * @property {Record<string, any>|null} layers
 */
export {};
