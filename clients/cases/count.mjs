// Counts in a file, under a lock: count.mjs CLIENT SERVER FILE TIMES. Prints when it held the lock.
import { readFileSync, writeFileSync } from "node:fs";
const [module, server, file, times] = process.argv.slice(2);
const { connect, Lost } = await import(module);
const client = connect(server), clock = () => Number(process.hrtime.bigint()) / 1e9;
for (let done = 0; done < Number(times);) {
  const lock = await client.acquire("counter", { ttl: 3 }), began = clock();
  try {
    const n = Number(readFileSync(file, "utf8"));
    await new Promise((go) => setTimeout(go, 2));
    lock.check();
    writeFileSync(file, String(n + 1));
    done++;
  } catch (e) {
    if (!(e instanceof Lost)) throw e;
  }
  console.log(lock.token, began, clock());
  await lock.release();
}
