/** The one WebSocket: messages out and in, and connecting again after the server was away. */

const AGAIN = [300, 600, 1200, 2500];

export class Socket {
  /**
   * @param {(message: any) => void} heard
   * @param {(open: boolean) => void} changed
   */
  constructor(heard, changed) {
    this.heard = heard;
    this.changed = changed;
    this.tries = 0;
    this.connect();
  }

  connect() {
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    this.socket = new WebSocket(`${scheme}//${location.host}/socket`);
    this.socket.onopen = () => { this.tries = 0; this.changed(true); };
    this.socket.onmessage = (event) => this.heard(JSON.parse(event.data));
    this.socket.onclose = () => {
      this.changed(false);
      setTimeout(() => this.connect(), AGAIN[Math.min(this.tries++, AGAIN.length - 1)]);
    };
  }

  get open() { return this.socket?.readyState === WebSocket.OPEN; }

  /** @param {Record<string, any>} message */
  send(message) { if (this.open) this.socket?.send(JSON.stringify(message)); }
}

/**
 * A JSON endpoint: its answer, or an Error with the server's own words.
 * @param {string} path
 * @param {any} [body]
 */
export async function ask(path, body) {
  const raw = body instanceof Blob;
  const answer = await fetch(path, body === undefined ? {} : {
    method: "POST",
    headers: { "content-type": raw ? "application/octet-stream" : "application/json" },
    body: raw ? body : JSON.stringify(body),
  });
  if (!answer.ok) {
    const words = await answer.json().catch(() => ({ message: answer.statusText }));
    throw new Error(words.message);
  }
  return answer;
}
