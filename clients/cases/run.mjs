// Runs the cases of cases.json with the TypeScript client: run.mjs CLIENT CASES SERVER CONTROL.
import { readFile } from "node:fs/promises";
const [module, cases, server, control] = process.argv.slice(2);
const { connect, Lost } = await import(module);

async function ask(step) {
  const answer = await fetch(control, { method: "POST", body: JSON.stringify(step) });
  if (!answer.ok) throw new Error(await answer.text());
}

const sleep = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));

async function run(steps) {
  const client = connect(server, { secret: "secret" });
  const held = {}, started = {};
  for (const step of steps) {
    const { op, as } = step;
    switch (op) {
      case "test": await ask(step); break;
      case "sleep": await sleep(step.seconds); break;
      case "acquire": {
        let failed;
        try { held[as] = await client.acquire(step.names, step); } catch (e) { failed = e; }
        if (failed?.name !== step.fails) throw new Error(`acquire: ${failed ?? "acquired"}, want ${step.fails ?? "a lock"}`);
        break;
      }
      case "start": started[as] = client.acquire(step.names, step).catch((e) => e); break;
      case "join": {
        held[as] = await started[as];
        if (held[as] instanceof Error) throw held[as];
        break;
      }
      case "held": held[as].check(); break;
      case "release": await held[as].release(); break;
      case "larger": if (!(held[as].token > held[step.than].token)) throw new Error("tokens do not grow"); break;
      case "lost": {
        const { signal } = held[as];
        for (const end = Date.now() + step.within * 1000; !signal.aborted; await sleep(0.005)) if (Date.now() > end) throw new Error("not lost in time");
        if (!(signal.reason instanceof Lost) || !signal.reason.message.includes(step.says ?? "")) throw new Error(`lost with ${signal.reason}`);
        let said;
        try { held[as].check(); } catch (e) { said = e; }
        if (!(said instanceof Lost)) throw new Error("check says that it is held");
        break;
      }
      default: throw new Error(`unknown step ${op}`);
    }
  }
}

let failed = 0;
for (const one of JSON.parse(await readFile(cases, "utf8"))) {
  try {
    await run(one.steps);
    console.log("ok", one.name);
  } catch (e) {
    failed++;
    console.log("not ok", one.name, "--", String(e), e.cause ?? "");
  } finally {
    await ask({ clear: true, "release all": true });
  }
}
process.exit(failed ? 1 : 0);
