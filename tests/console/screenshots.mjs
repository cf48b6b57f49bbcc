/** Makes pictures of every view, light and dark, in the folder TOOLBUS_PICTURES. */

import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { mkdirSync } from "node:fs";
import { createServer } from "node:http";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Daemon, Visitors, views } from "./support.mjs";

const folder = process.env.TOOLBUS_PICTURES ?? "pictures";
const size = { width: 1280, height: 800 };
const ENDPOINTS = [
  ["get_weather", "The weather of a place", 40],
  ["search_orders", "Finds orders by customer", 350],
  ["send_mail", "Sends a mail to a person", 120],
  ["get_invoice", "An invoice as PDF", 80],
];

mkdirSync(folder, { recursive: true });

const backend = createServer(async (request, response) => {
  const [, name] = request.url.split("/");
  await sleep(ENDPOINTS.find(([own]) => own === name)[2] * (0.6 + Math.random()));
  response.statusCode = name === "get_invoice" ? 503 : 200;
  response.end("done");
});
backend.listen(0, "127.0.0.1").unref();
await once(backend, "listening");

const endpoints = ENDPOINTS.map(([name, description]) => `
[[rest.endpoints]]
name = "${name}"
description = "${description}"
url = "http://127.0.0.1:${backend.address().port}/${name}"
parameters = '{"type":"object","properties":{"q":{"type":"string"}}}'
effect = "${name === "send_mail" ? "effectful" : "read-only"}"
`);
const more = `
[agents.billing]
allowed_tools = ["get_*", "search_orders"]
[agents.support]
allowed_tools = ["*"]
tool_rate_limits = { send_mail = { rps = 0.1, burst = 2 } }
[agents.travel]
allowed_tools = ["get_weather", "echo"]
[mcp.servers.notes]
command = "${process.execPath}"
args = ["${path.join(import.meta.dirname, "mcp_server.mjs")}", '["list_notes", "read_note", "write_note"]']
[mcp.servers.tickets]
command = "/usr/bin/false"
${endpoints.join("")}`;
const http = `trace_url = "https://jaeger.example.com/trace/{trace_id}"`;

const [daemon, visitors] = await Promise.all([Daemon.start({ more, http, name: "prod-eu-1" }), Visitors.start()]);
const call = (agent, tool, id) => daemon.call(agent, tool, tool === "echo" ? { text: "hello" } : {}, { id });
for (let round = 0; round < 3; round += 1) {
  await Promise.all([
    call("support", "search_orders"),
    call("support", "send_mail"),
    call("travel", "get_weather"),
    call("travel", "search_orders"),
    call("billing", "get_invoice"),
    call("support", "echo"),
    call("billing", "search_orders"),
  ]);
}
const id = randomUUID();
await call("support", "search_orders", id);

for (const colorScheme of ["light", "dark"]) {
  const page = await visitors.visitor(daemon, { colorScheme, viewport: size });
  const take = async (address, name) => {
    await page.goto(address);
    // The first figures come some seconds after the start.
    if (name === "overview") await page.locator("#charts svg").first().waitFor();
    await page.screenshot({ path: path.join(folder, `${name}-${colorScheme}.png`) });
  };
  for (const view of await views(page)) await take(view, new URL(view).pathname.split("/")[2] ?? "overview");
  const objects = [
    ["call", `/calls/${id}`],
    ["agent", "/agents/support"],
    ["tool", "/tools/search_orders"],
    ["server", "/servers/notes"],
  ];
  for (const [name, address] of objects) await take(`${daemon.url}/console${address}`, name);
}
await visitors.close();
await daemon.close();
