// Acquires a lock while the first fetch never settles unless it is aborted: hang.mjs CLIENT SERVER.
// Node's does that now and then when its connection ends at the wrong moment.
const [module, server] = process.argv.slice(2);
const { connect } = await import(module);
const real = fetch;
globalThis.fetch = (url, options) => {
  globalThis.fetch = real;
  return new Promise((_, no) => options.signal.addEventListener("abort", () => no(options.signal.reason)));
};
const lock = await connect(server, { secret: "secret" }).acquire("t/hang");
lock.check();
await lock.release();
