/** A program whose tools write down that they ran; the first run of each does not end. */

import { appendFileSync, readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { Toolbus } from "../src/index.js";

const [url, name, effects] = process.argv.slice(2) as [string, string, string];
const bus = await Toolbus.connect(url, { agent: name });

async function run(tool: string, said: string): Promise<string> {
  const isFirst = !readFileSync(effects, { encoding: "utf8", flag: "a+" }).includes(tool);
  appendFileSync(effects, `${tool}\n`);
  if (isFirst) await sleep(60_000);
  return said;
}

bus.tool({ name: "pay", effect: "effectful" }, () => run("pay", "paid"));
bus.tool({ name: "look", effect: "read-only" }, () => run("look", "looked"));
const served = bus.serve();
console.log("ready");
await served;
