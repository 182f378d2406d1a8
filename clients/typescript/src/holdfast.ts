/**
 * Locks of a `holdfast serve`: first come, first served, across languages and hosts.
 *
 *     const client = connect("http://127.0.0.1:7420", { secret });
 *     await client.lock("nightly", { wait: 600 }, async ({ token, signal }) => {
 *       await backup(token, { signal });
 *     });
 *
 * A hold is kept by heartbeats, which one timer sends for all holds of a client. The client counts
 * by its own clock how long it may believe in a hold: when that time is over without an answered
 * heartbeat the hold is lost and `signal` aborts, before anybody else can hold the lock. What a
 * frozen process writes when it wakes up only a fence can stop: hand `token` to
 * `holdfast_fence(name, token)` in the same transaction.
 */

/** How a lock is taken. Times are seconds. */
export interface LockOptions {
  /** How long to stand in line: Infinity (the default) for as long as it takes, 0 not at all. */
  wait?: number;
  /** Together with any number of other shared holders. */
  shared?: boolean;
  /** Together with at most so many holders. */
  slots?: number;
  /** How long the server may hear nothing of this client; else the setting of the store. */
  ttl?: number;
  /** Shown to those who wait, 200 bytes at most. */
  reason?: string;
  /** Shown with the lock, 1 KiB at most. */
  labels?: Record<string, string>;
  /** Gives up the wait. A lock that is held stays. */
  signal?: AbortSignal;
}

/** The base of all errors of this module. */
export class HoldfastError extends Error {
  override get name(): string { return this.constructor.name; }
}
/** Others hold the lock, and it was not to be waited for, or not for longer. */
export class Held extends HoldfastError {
  constructor(message: string, readonly holders: readonly unknown[] = [], readonly waiting = 0) { super(message); }
}
/** The hold is over: its heartbeats were not answered in time, or it was broken. */
export class Lost extends HoldfastError {}
/** The server refuses the request: it is wrong, or not allowed. */
export class Refused extends HoldfastError {
  constructor(message: string, readonly status: number) { super(message); }
}
/** No server answered in time. If a lock was asked for it is given back, or ends by itself. */
export class Unavailable extends HoldfastError {}

interface Answer {
  state?: string; event?: string; status?: number; valid?: number; ttl?: number; why?: string;
  detail?: string; title?: string; holders?: unknown[]; waiting?: number;
  locks?: { name: string; token: number }[]; holds?: Answer[];
}

/** Seconds by a clock that does not step back and goes on while the machine sleeps: of two clocks the later. */
const epoch = Date.now() - performance.now();
const now = (): number => Math.max(performance.now(), Date.now() - epoch) / 1000;
const sleep = (seconds: number): Promise<void> => new Promise((done) => setTimeout(done, seconds * 1000));
const newID = (): string => [...crypto.getRandomValues(new Uint8Array(16))].map((b) => b.toString(16).padStart(2, "0")).join("");

/** Seconds after which to ask a server again that was asked too often. */
const afterTooMany = (): number => 0.5 + Math.random();

/** A client of the server at url. The secret, or HOLDFAST_SECRET, is sent as a bearer token. */
export function connect(url = envOf("HOLDFAST_URL") ?? "http://127.0.0.1:7420", options: { secret?: string; owner?: Record<string, unknown> } = {}): Client {
  return new Client(url, options.secret ?? envOf("HOLDFAST_SECRET"), options.owner);
}

function envOf(name: string): string | undefined {
  return (globalThis as { process?: { env: Record<string, string | undefined> } }).process?.env[name];
}

/** A lock that is held. It is released by `Client.lock`, by `release`, or by `await using`. */
export class Lock {
  readonly #abort = new AbortController();
  #done = false;
  /** @internal */ deadline: number;
  /** @internal */ due: number;

  /** @internal */
  constructor(readonly client: Client, /** @internal */ readonly id: string, readonly names: readonly string[],
    /** A fencing token for each name, larger than all earlier ones of the name. */
    readonly tokens: Readonly<Record<string, number>>, /** @internal */ public ttl: number, deadline: number) {
    this.deadline = deadline;
    const left = deadline - now(); // at once if less than half a TTL is left, as after a long wait
    this.due = left < ttl / 2 ? now() : now() + Math.min(ttl / 3, left - ttl / 2);
  }

  /** The fencing token of the lock, or of the first of its names. */
  get token(): number { return this.tokens[this.names[0]!]!; }
  /** Aborts when the lock is lost; its reason is a Lost. */
  get signal(): AbortSignal { return this.#abort.signal; }
  /** Seconds for which the lock may be believed in without another heartbeat. */
  get remaining(): number { return Math.max(0, this.deadline - now()); }
  /** @internal */ get done(): boolean { return this.#done; }

  /** Throws Lost unless the lock is held. It reads the clock itself. */
  check(): void {
    if (!this.#done && now() >= this.deadline) this.lose("no heartbeat was answered in time");
    this.signal.throwIfAborted();
    if (this.#done) throw new HoldfastError(`${this.names.join(", ")}: has been released`);
  }

  /** Gives the lock back. Again, or after a loss, it does nothing. */
  async release(): Promise<void> {
    if (this.#done) return;
    this.#done = true;
    this.client.drop(this);
    await this.client.giveBack(this.id, 10);
  }

  async [Symbol.asyncDispose](): Promise<void> { await this.release(); }

  /** @internal */
  lose(why: string): void {
    if (this.#done) return;
    this.#done = true;
    this.client.drop(this);
    this.#abort.abort(new Lost(`${this.names.join(", ")}: ${why}`));
    void this.client.giveBack(this.id, 5);
  }
}

/** A client of one server. One per process is best: one timer sends the heartbeats of all its locks. */
export class Client {
  readonly #url: string;
  readonly #headers: Record<string, string>;
  readonly #owner: Record<string, unknown>;
  readonly #locks = new Map<string, Lock>();
  #timer: ReturnType<typeof setTimeout> | undefined;
  #beating = false;

  constructor(url: string, secret?: string, owner: Record<string, unknown> = {}) {
    this.#url = url.replace(/\/+$/, "");
    this.#headers = secret ? { Authorization: `Bearer ${secret}` } : {};
    const p = (globalThis as { process?: { pid?: number; title?: string } }).process;
    this.#owner = { program: p?.title, pid: p?.pid, ...owner };
  }

  /** Holds a lock, or several all at once, while work runs. The work has to stop at the lock's signal; if it then ends without an error of its own, this throws Lost. */
  async lock<T>(names: string | readonly string[], work: (lock: Lock) => Promise<T>): Promise<T>;
  async lock<T>(names: string | readonly string[], options: LockOptions, work: (lock: Lock) => Promise<T>): Promise<T>;
  async lock<T>(names: string | readonly string[], a: LockOptions | ((lock: Lock) => Promise<T>), b?: (lock: Lock) => Promise<T>): Promise<T> {
    const [options, work] = typeof a === "function" ? [{}, a] : [a, b!];
    const lock = await this.acquire(names, options);
    try {
      const result = await work(lock);
      if (!lock.done || lock.signal.aborted) lock.check();
      return result;
    } finally {
      await lock.release();
    }
  }

  /**
   * Takes a lock, or several all at once, and keeps it until release. Throws Held, Refused or
   * Unavailable; Lost, if the waiting request was broken; or the reason of options.signal.
   */
  async acquire(names: string | readonly string[], options: LockOptions = {}): Promise<Lock> {
    const all = typeof names === "string" ? [names] : [...names];
    const { wait = Infinity, signal, shared, slots, ttl, reason, labels } = options;
    const body = { names: all, on_close: "lapse", shared, slots, ttl, reason, labels, owner: this.#owner };
    const end = now() + wait;
    let id = newID(), inLine = false, failing = 0, term = ttl ?? 15, over = false;
    try {
      for (;;) {
        signal?.throwIfAborted();
        let status: number, answer: Answer, sent = now();
        try {
          if (!inLine) {
            [status, answer] = await this.ask("PUT", `/v1/holds/${id}`, body, 6, signal);
            if (status === 409 && end > now()) { inLine = true; failing = 0; continue; }
          } else {
            [status, answer] = await this.#wait(id, body, end, term, signal, (t) => { term = t; failing = 0; });
            sent = now();
            if (status === 200) { // what counts is a heartbeat of our own
              [status, answer] = await this.ask("POST", "/v1/beats", { ids: [id] }, 5);
              if (status === 200) [status, answer] = [answer.holds![0]!.status!, answer.holds![0]!];
            }
          }
        } catch (e) {
          signal?.throwIfAborted();
          [status, answer] = [503, { detail: `${this.#url}: ${String((e as Error).cause ?? e)}` }];
        }
        if ((status === 200 || status === 202) && !answer.state) [status, answer] = [503, { detail: `${this.#url}: what answers is not a holdfast server` }];
        if (status === 200 && answer.state === "held" && (answer.valid ?? 0) > now() - sent) {
          const tokens = Object.fromEntries(answer.locks!.map((l) => [l.name, l.token]));
          const lock = new Lock(this, id, all, tokens, answer.ttl!, sent + answer.valid!);
          this.#locks.set(id, lock);
          this.#schedule();
          return lock;
        }
        if (status === 410 && inLine && answer.why !== "broken") { id = newID(); failing = 0; continue; } // its place has lapsed: at the end of the line
        if (status < 500 && ![200, 202, 429].includes(status)) { over = status === 409 || status < 409; throw errorOf(status, answer); }
        if (status >= 500) failing ||= now();
        else failing = 0;
        if ((failing && now() - failing > Math.max(10, term)) || now() > end + 10) throw errorOf(status, answer);
        if (status === 429) await sleep(afterTooMany());
        else if (status >= 500) await sleep(0.1);
      }
    } catch (e) {
      if (!over) void this.giveBack(id, 5);
      throw e;
    }
  }

  /** Stands in line by a stream, in which something comes each third of a TTL. After half a TTL of
   * silence it throws: the same request again, on a new connection, keeps the place. */
  async #wait(id: string, body: object, end: number, term: number, signal: AbortSignal | undefined, learn: (ttl: number) => void): Promise<[number, Answer]> {
    const stop = new AbortController();
    const give = (): void => stop.abort(signal?.reason);
    signal?.addEventListener("abort", give);
    let silent = setTimeout(() => stop.abort(new Error("the server is silent")), 6000);
    try {
      const wait = Math.max(0.001, Math.min(end - now(), 1e6));
      const answer = await fetch(`${this.#url}/v1/holds/${id}`, {
        method: "PUT", body: JSON.stringify({ ...body, wait }), signal: stop.signal,
        headers: { ...this.#headers, "Content-Type": "application/json", Accept: "application/x-ndjson" },
      });
      if (answer.status !== 200) return [answer.status, parse(await answer.text())];
      const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
      for (let text = ""; ;) {
        const { value, done } = await reader.read();
        if (done) throw new Error("the connection ended");
        clearTimeout(silent);
        silent = setTimeout(() => stop.abort(new Error("the server is silent")), Math.max(500, term * 500));
        const lines = (text + value).split("\n");
        text = lines.pop()!;
        for (const line of lines) {
          const event = parse(line);
          if (event.ttl) learn(term = event.ttl);
          if (event.event === "held" || event.event === "kept") return [200, event];
          if (event.event === "refused" || event.event === "lost") return [event.status ?? 410, event];
          if (event.event === "again") throw new Error(event.detail ?? "the server ends");
        }
      }
    } finally {
      clearTimeout(silent);
      signal?.removeEventListener("abort", give);
      stop.abort();
    }
  }

  // Heartbeats.

  #schedule(): void {
    clearTimeout(this.#timer);
    if (this.#locks.size === 0 || this.#beating) return;
    const next = Math.min(...[...this.#locks.values()].map((l) => Math.min(l.due, l.deadline)));
    // A timer stands still while the machine sleeps, so it is a second at most.
    this.#timer = setTimeout(() => void this.#beat(), Math.max(5, Math.min(1, next - now()) * 1000));
  }

  async #beat(): Promise<void> {
    for (const l of this.#locks.values()) if (now() >= l.deadline) l.lose("no heartbeat was answered in time");
    const ready = [...this.#locks.values()].filter((l) => l.due <= now()).slice(0, 1000);
    if (ready.length > 0) {
      this.#beating = true;
      const sent = now();
      // A request that hangs is to cost no lock, neither these nor those that are due meanwhile.
      const patience = Math.max(0.05, Math.min(...[...this.#locks.values()].map((l) => l.remaining / 2), ...ready.map((l) => l.ttl / 3), 5));
      let holds: Answer[] = [];
      try {
        const [status, answer] = await this.ask("POST", "/v1/beats", { ids: ready.map((l) => l.id) }, patience);
        if (status === 200) holds = answer.holds ?? [];
      } catch { /* again, until the deadline */ }
      this.#beating = false;
      ready.forEach((l, n) => {
        const one: Answer = holds[n] ?? {};
        if (one.status === 200 && one.state === "held") {
          l.deadline = Math.max(l.deadline, sent + (one.valid ?? 0));
          l.ttl = one.ttl ?? l.ttl;
          l.due = sent + l.ttl / 3;
        } else if (one.state === "waiting" || [403, 410, 422].includes(one.status!)) {
          l.lose(one.detail ?? one.title ?? "the server does not know it any more");
        } else l.due = now() + 0.1;
      });
    }
    this.#schedule();
  }

  /** @internal */
  drop(lock: Lock): void {
    this.#locks.delete(lock.id);
    this.#schedule();
  }

  /** @internal Sends DELETE until it is answered. What is not given back ends by itself after its TTL. */
  async giveBack(id: string, patience: number): Promise<void> {
    for (const end = now() + patience; now() < end; await sleep(0.1)) {
      try {
        const [status] = await this.ask("DELETE", `/v1/holds/${id}`, undefined, 2);
        if (status === 429) await sleep(afterTooMany());
        else if (status < 500) return;
      } catch { /* again */ }
    }
  }

  /** @internal One request. An error that is thrown means that its outcome is unknown. All requests may be sent again. */
  async ask(method: string, path: string, body: object | undefined, seconds: number, signal?: AbortSignal): Promise<[number, Answer]> {
    // A timer of our own: that of AbortSignal.timeout lets Node end while fetch waits for a connection that is gone.
    const stop = new AbortController();
    const timer = setTimeout(() => stop.abort(new Error(`no answer in ${seconds} s`)), Math.ceil(seconds * 1000));
    const give = (): void => stop.abort(signal?.reason);
    signal?.addEventListener("abort", give);
    if (signal?.aborted) give();
    try {
      const answer = await fetch(this.#url + path, {
        method, signal: stop.signal,
        headers: { ...this.#headers, Accept: "application/json", ...(body && { "Content-Type": "application/json" }) },
        ...(body && { body: JSON.stringify(body) }),
      });
      return [answer.status, parse(await answer.text())];
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", give);
    }
  }
}

function parse(text: string): Answer {
  try {
    return text.trim() ? (JSON.parse(text) as Answer) : {};
  } catch {
    return {}; // of a proxy
  }
}

function errorOf(status: number, answer: Answer): HoldfastError {
  const text = answer.detail ?? answer.title ?? `status ${status}`;
  if (status === 409) return new Held(text, answer.holders, answer.waiting);
  if (status === 410) return new Lost(text);
  return status >= 500 || status === 429 ? new Unavailable(text) : new Refused(text, status);
}
