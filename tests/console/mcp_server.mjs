/** An MCP server over standard input and output whose texts mean harm to pages that show them: `mcp_server.mjs TEXTS`. */

import { createInterface } from "node:readline";

/** A text that is the address of data becomes an image of that type. */
function block(text) {
  const [, mimeType, data] = text.match(/^data:(.+);base64,(.+)$/) ?? [];
  return data ? { type: "image", mimeType, data } : { type: "text", text };
}

const texts = JSON.parse(process.argv[2]);
const schema = { type: "object", properties: { [texts[0]]: { type: "string", description: texts[0] } } };
const tools = texts.flatMap((text, index) => [
  { name: `tool_${index}`, title: text, description: text, inputSchema: schema },
  { name: text.slice(0, 100), description: text, inputSchema: schema },
]);

const ANSWERS = {
  initialize: () => ({
    protocolVersion: "2025-06-18",
    capabilities: { tools: {} },
    serverInfo: { name: texts[0], title: texts[1], version: texts[2] },
    instructions: texts.join("\n"),
  }),
  "tools/list": () => ({ tools }),
  "tools/call": () => ({ content: texts.map(block) }),
};

for (const text of texts) process.stderr.write(`${text}\n`);
for await (const line of createInterface({ input: process.stdin })) {
  const { id, method } = JSON.parse(line);
  if (id === undefined) continue;
  const result = ANSWERS[method]?.() ?? {};
  process.stdout.write(`${JSON.stringify({ jsonrpc: "2.0", id, result })}\n`);
}
