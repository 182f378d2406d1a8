// Locks as blocks: block.mjs CLIENT SERVER CONTROL.
const [module, server, control] = process.argv.slice(2);
const { connect, Lost } = await import(module);
const client = connect(server, { token: "secret" });

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
