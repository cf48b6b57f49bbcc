/** An MCP server over standard input and output, with one tool that reports its progress. */

import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const tool = {
  name: "count",
  description: "Counts",
  inputSchema: { type: "object" },
  annotations: { readOnlyHint: true },
};

function say(message: object): void {
  console.log(JSON.stringify({ jsonrpc: "2.0", ...message }));
}

for await (const line of createInterface({ input: process.stdin })) {
  const { id, method, params = {} } = JSON.parse(line);
  if (id === undefined) continue;
  let result = {};
  if (method === "initialize") {
    const serverInfo = { name: "reporting", version: "1.0" };
    result = { protocolVersion: params.protocolVersion, capabilities: { tools: {} }, serverInfo };
  } else if (method === "tools/list") {
    result = { tools: [tool] };
  } else if (method === "tools/call") {
    for (const progress of [1, 2, 3]) {
      const report = { progressToken: params._meta?.progressToken, progress, total: 3 };
      say({ method: "notifications/progress", params: report });
      await sleep(100);
    }
    result = { content: [{ type: "text", text: "counted" }] };
  }
  say({ id, result });
}
