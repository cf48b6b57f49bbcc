// Uses a server through the SDK for TypeScript, and prints what it saw as JSON.
//
// typescript_sdk.cjs SERVER TOKEN MODE: the server is a URL, or a program with its arguments, as a list in JSON. "1" is the
// package of the first generation; "legacy" (with sessions) and "auto" (without them, if the server can) are modes of the
// second. After a line "watching" it waits until the list of tools changes.

const [server, token, mode] = process.argv.slice(2);
// What a tool is called with so that it fails.
const nowhere = { datetime: '2026-01-02T03:04', from_timezone: 'UTC', to_timezone: 'Nowhere/At_All' };

function sdk() {
  if (mode === '1') {
    const { Client } = require('@modelcontextprotocol/sdk/client/index.js');
    const { StreamableHTTPClientTransport } = require('@modelcontextprotocol/sdk/client/streamableHttp.js');
    const { StdioClientTransport } = require('@modelcontextprotocol/sdk/client/stdio.js');
    return { Client, StreamableHTTPClientTransport, StdioClientTransport };
  }
  return { ...require('@modelcontextprotocol/client'), ...require('@modelcontextprotocol/client/stdio') };
}

let changed;
const change = new Promise((resolve) => { changed = resolve; });
const { Client, StreamableHTTPClientTransport, StdioClientTransport } = sdk();
const client = new Client(
  { name: 'tests', version: '1' },
  { listChanged: { tools: { onChanged: () => changed() } }, versionNegotiation: { mode } },
);

function begin() {
  if (server.startsWith('[')) {
    const [command, ...args] = JSON.parse(server);
    return new StdioClientTransport({ command, args });
  }
  const requestInit = { headers: { Authorization: `Bearer ${token}` } };
  return new StreamableHTTPClientTransport(new URL(server), { requestInit });
}

// The first generation takes a schema of the result before the options.
const call = (name, args, options) => {
  const before = mode === '1' ? [undefined] : [];
  return client.callTool({ name, arguments: args }, ...before, options);
};

async function everything(ask, field) {
  const found = [];
  for (let cursor; ; ) {
    const page = await ask({ cursor });
    found.push(...page[field]);
    cursor = page.nextCursor;
    if (cursor === undefined) return found;
  }
}

async function refused(answer) {
  try {
    await answer;
  } catch (error) {
    return { code: error.code, message: error.message };
  }
}

async function cancelled() {
  const abort = new AbortController();
  const options = { signal: abort.signal, onprogress: () => abort.abort('enough') };
  try {
    await call('trigger-long-running-operation', { duration: 100, steps: 1000 }, options);
  } catch {
    return abort.signal.aborted;
  }
}

async function main() {
  const transport = begin();
  await client.connect(transport);
  const seen = { protocol: client.getNegotiatedProtocolVersion?.() ?? transport.protocolVersion };
  seen.server = client.getServerVersion()?.name;
  const tools = await everything((params) => client.listTools(params), 'tools');
  seen.tools = tools.map((tool) => tool.name);
  seen.described = tools.find((tool) => tool.name === 'get-structured-content');
  seen.echo = (await call('echo', { message: 'hello' })).content.map((block) => block.text);
  seen.desk = [];
  for (let asked = 0; asked < 2; asked += 1) {
    seen.desk.push(JSON.parse((await call('desk.about', {})).content[0].text).asked);
  }
  seen.structured = (await call('get-structured-content', { location: 'Chicago' })).structuredContent;
  const failed = await call('convert_time', nowhere);
  seen.failed = failed.isError && failed.content[0].text;
  seen.unknown = await refused(call('no_such_tool', {}));
  seen.progress = [];
  const onprogress = ({ progress, total }) => seen.progress.push([progress, total]);
  await call('trigger-long-running-operation', { duration: 1, steps: 4 }, { onprogress });
  seen.cancelled = await cancelled();
  const resources = await everything((params) => client.listResources(params), 'resources');
  seen.resources = resources.map((resource) => resource.uri);
  if (resources.length > 0) {
    seen.read = (await client.readResource({ uri: resources[0].uri })).contents[0].text.slice(0, 60);
  }
  console.log('watching');
  await change;
  seen.after = (await everything((params) => client.listTools(params), 'tools')).map((tool) => tool.name);
  await transport.terminateSession?.();
  await client.close();
  console.log(JSON.stringify(seen));
}

main();
