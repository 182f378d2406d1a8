// Locks as blocks, beside one that hangs, and on a machine that sleeps: block.mjs CLIENT SERVER CONTROL.
const [module, server, control] = process.argv.slice(2);
const { connect, Lost } = await import(module);
const client = connect(server, { secret: "secret" });

// A block whose lock was released in it ends in order. One whose lock was lost ends with Lost.
await client.lock("t/block", { wait: 0 }, (lock) => lock.release());
let said;
try {
  await client.lock("t/block", { wait: 20, ttl: 2 }, async ({ signal }) => {
    const lost = new Promise((done) => signal.addEventListener("abort", done));
    await fetch(control, { method: "POST", body: JSON.stringify({ break: "t/block", reason: "ticket 815" }) });
    await lost;
  });
} catch (e) {
  said = e;
}
if (!(said instanceof Lost) || !said.message.includes("ticket 815")) throw new Error(`the block ended with ${said}`);

// Heartbeats of one lock that hang cost no other its own.
const slow = await client.acquire("t/slow", { wait: 0, ttl: 6 }), quick = await client.acquire("t/quick", { wait: 0, ttl: 1 });
const ask = client.ask.bind(client);
client.ask = async (method, path, body, seconds, signal) => {
  if (String(body?.ids) !== slow.id) return ask(method, path, body, seconds, signal);
  await new Promise((done) => setTimeout(done, seconds * 1000));
  throw new Error("no answer");
};
await new Promise((done) => setTimeout(done, 5000));
quick.check();
await Promise.all([quick.release(), slow.release()]);

// While the machine sleeps its clock goes on and its timers do not. Soon after it wakes up a lock whose
// time is over is lost.
const asleep = await client.acquire("t/asleep", { wait: 0, ttl: 60 });
const clock = Date.now;
Date.now = () => clock() + 3600e3;
await new Promise((done) => { asleep.signal.addEventListener("abort", done); setTimeout(done, 5000); });
Date.now = clock;
if (!asleep.signal.aborted) throw new Error("five seconds after the machine woke up the lock is still held");
