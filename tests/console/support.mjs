/** A daemon on the broker that the tests of a run share, callers, and browsers that look at the console. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import net from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import amqp from "amqplib";
import { chromium } from "playwright-core";

export const ADMIN = "a-token-of-tests-that-lets-act";
export const READER = "a-token-of-tests-that-lets-read";
const PATIENCE = 60_000;

/** Waits until a condition holds, and returns what it gave. */
export async function eventually(condition, what, time = PATIENCE) {
  for (const ends = Date.now() + time; ; await sleep(20)) {
    const met = await condition();
    if (met) return met;
    assert(Date.now() < ends, `${what} does not happen`);
  }
}

async function freePort() {
  const server = net.createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  return port;
}

/** Port of the node that `toolbus-testing` starts for all tests of a run. */
async function brokerPort() {
  const socket = process.env.TOOLBUS_TEST_BROKER;
  assert(socket, "run these tests with `tests/run --console`");
  const chunks = await net.connect(socket).toArray();
  const folder = Buffer.concat(chunks).toString();
  const [port] = readFileSync(path.join(folder, "ports"), "utf8").match(/\d+/);
  return Number(port);
}

/** A way to a port that can be cut. */
export class Proxy {
  /** Whether new connections end at once. */
  refuses = false;
  #open = new Set();
  #server;

  static async start(target) {
    const proxy = new Proxy();
    proxy.#server = net.createServer((near) => {
      if (proxy.refuses) return near.destroy();
      const far = net.connect(target, "127.0.0.1");
      for (const [one, other] of [[near, far], [far, near]]) {
        proxy.#open.add(one);
        one.on("error", () => {}).on("close", () => proxy.#open.delete(one) && other.destroy());
        one.pipe(other);
      }
    });
    proxy.#server.listen(0, "127.0.0.1").unref();
    await once(proxy.#server, "listening");
    return proxy;
  }

  get port() {
    return this.#server.address().port;
  }

  cut() {
    this.refuses = true;
    for (const end of this.#open) end.destroy();
  }
}

/** A daemon with queues of its own, and a caller that is connected to its broker. */
export class Daemon {
  #folder = mkdtempSync(path.join(tmpdir(), "toolbus-console-"));
  #process;
  #connection;
  #channel;
  #replies = new Map();

  /** `more`: further sections of the configuration. `http`: further keys of that section. */
  static async start({ more = "", http = "", name = `console-${randomUUID().slice(0, 8)}` } = {}) {
    const daemon = new Daemon();
    const port = await brokerPort();
    daemon.bus = await Proxy.start(port);
    daemon.port = await freePort();
    daemon.name = name;
    daemon.url = `http://127.0.0.1:${daemon.port}`;
    daemon.#write(more, http);
    process.on("exit", () => {
      daemon.#process?.kill("SIGKILL");
      rmSync(daemon.#folder, { recursive: true, force: true });
    });
    await daemon.run();
    await daemon.#connect(port);
    return daemon;
  }

  #write(more, http) {
    const text = `
[bus]
url = "amqp://guest:guest@127.0.0.1:${this.bus.port}/%2f"
name = "${this.name}"
exchange = "${this.name}"
dead_letter_exchange = "${this.name}.dlx"
queue_prefix = "${this.name}"
[daemon]
socket = "${this.#folder}/socket"
[store]
url = "sqlite:${this.#folder}/store.db"
[http]
listen = "127.0.0.1:${this.port}"
admin_token = "${ADMIN}"
read_token = "${READER}"
${http}
[identity]
trust_headers = true
[tools]
echo = true
[agents.ana]
[agents.bea]
allowed_tools = ["get_*"]
${more}`;
    writeFileSync(path.join(this.#folder, "toolbus.toml"), text);
  }

  /** Writes another configuration, with these further sections, which is not loaded. */
  rewrite(more) {
    this.#write(more, "");
  }

  async run() {
    const log = path.join(this.#folder, "log");
    const output = openSync(log, "a");
    const program = process.env.TOOLBUS_BIN ?? "toolbus";
    const options = { cwd: this.#folder, stdio: ["ignore", output, output] };
    const daemon = spawn(program, ["serve", "--config", "toolbus.toml"], options);
    daemon.unref();
    this.#process = daemon;
    const isReady = async () => {
      assert.equal(daemon.exitCode, null, readFileSync(log, "utf8").slice(-5000));
      return fetch(`${this.url}/readyz`).then((response) => response.ok, () => false);
    };
    await eventually(isReady, "the start of the daemon");
  }

  signal(name) {
    this.#process.kill(name);
  }

  async end() {
    this.#process.ref();
    this.#process.kill("SIGKILL");
    if (this.#process.exitCode === null && this.#process.signalCode === null) await once(this.#process, "exit");
  }

  async close() {
    await this.end();
    for (const queue of ["invoke", "control", "results", "subagent-report"]) {
      for (const suffix of ["", ".dlq"]) await this.#channel.deleteQueue(`${this.name}.${queue}${suffix}`);
    }
    await this.#connection.close();
  }

  async #connect(port) {
    this.#connection = await amqp.connect(`amqp://guest:guest@127.0.0.1:${port}/%2f`);
    this.#channel = await this.#connection.createChannel();
    const take = ({ properties, content }) => {
      this.#replies.get(properties.correlationId)?.(JSON.parse(content.toString()));
      this.#replies.delete(properties.correlationId);
    };
    await this.#channel.consume("amq.rabbitmq.reply-to", take, { noAck: true });
  }

  /** Calls a tool over the bus; resolves to the body of the reply, once the console counts the call as ended. */
  async call(agent, tool, args = {}, { id = randomUUID(), correlation = randomUUID(), headers = {} } = {}) {
    const options = {
      replyTo: "amq.rabbitmq.reply-to",
      correlationId: correlation,
      messageId: id,
      headers: { "rb-source": agent, ...headers },
    };
    const body = JSON.stringify({ toolCallId: id, toolName: tool, arguments: args });
    const replied = new Promise((resolve) => this.#replies.set(correlation, resolve));
    this.request(body, options);
    const reply = await replied;
    // A reply arrives before the daemon has its confirm from the broker, with which the call ends.
    await eventually(async () => !(await this.#runs(id)), `the end of call ${id}`);
    return reply;
  }

  async #runs(id) {
    const query = new URLSearchParams({ id, status: "in_flight" });
    const response = await fetch(`${this.url}/v1/calls?${query}`, { headers: { authorization: `Bearer ${READER}` } });
    const { calls } = await response.json();
    return calls.length > 0;
  }

  /** Publishes any request on the topic of calls. */
  request(body, options) {
    this.#channel.publish(this.name, "tool.invoke", Buffer.from(body), options);
  }

  /** Declares a queue for a topic of the exchange; returns a function that takes its next message. */
  async queue(topic) {
    const { queue } = await this.#channel.assertQueue("", { exclusive: true });
    await this.#channel.bindQueue(queue, this.name, topic);
    return () => eventually(() => this.#channel.get(queue, { noAck: true }), `a message on ${topic}`);
  }
}

/** A page that says hello from another origin, on this machine. */
export async function otherOrigin(html) {
  const server = createServer((_, response) => response.setHeader("content-type", "text/html").end(html));
  server.listen(0, "127.0.0.1").unref();
  await once(server, "listening");
  return `http://127.0.0.1:${server.address().port}`;
}

/** A browser; what goes wrong on its pages is in `problems`, and what they ask for in `requests`. */
export class Visitors {
  static async start() {
    const visitors = new Visitors();
    // A name that a rebinding attacker owns leads here.
    const args = ["--host-resolver-rules=MAP evil.example 127.0.0.1", "--disable-dev-shm-usage"];
    const executablePath = process.env.TOOLBUS_CHROMIUM ?? "/usr/bin/chromium";
    visitors.browser = await chromium.launch({ executablePath, args });
    return visitors;
  }

  /** A page of a browser of its own, without a session. */
  async stranger(options = {}) {
    const context = await this.browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
    const page = await context.newPage();
    page.problems = [];
    page.requests = [];
    await context.exposeBinding("violated", (_, what) => page.problems.push(`policy: ${what}`));
    await context.addInitScript(() =>
      addEventListener("securitypolicyviolation", (event) => globalThis.violated(event.violatedDirective)),
    );
    page.on("dialog", (dialog) => {
      page.problems.push(`dialog: ${dialog.message()}`);
      return dialog.dismiss();
    });
    page.on("pageerror", (error) => page.problems.push(`error: ${error.message}`));
    page.on("console", (message) => message.type() === "error" && page.problems.push(`console: ${message.text()}`));
    context.on("request", (request) => page.requests.push(request.url()));
    return page;
  }

  /** A page of a browser that has logged in. */
  async visitor(daemon, { token = ADMIN, path = "", ...options } = {}) {
    const page = await this.stranger(options);
    await page.goto(`${daemon.url}/console${path}`);
    await logIn(page, token);
    await page.locator("nav").waitFor();
    // Before that, no script is there for keys.
    await page.waitForLoadState();
    return page;
  }

  async close() {
    await this.browser.close();
  }
}

/** Clicks what leads to another page, and waits until that page is there as a whole. */
export async function follow(locator) {
  await Promise.all([locator.page().waitForEvent("load"), locator.click()]);
}

export async function logIn(page, token) {
  await page.getByLabel("Token").fill(token);
  await page.getByRole("button", { name: "Log in" }).click();
}

/** The addresses of all views, as the pages have them. */
export async function views(page) {
  return page.locator("nav a").evaluateAll((links) => links.map((link) => link.href));
}

/** A page that differs from others of its kind by names alone. */
function kind(address) {
  const { pathname, searchParams } = new URL(address);
  const [, , view, name, ...rest] = pathname.split("/");
  return [view, name && "NAME", ...rest, ...searchParams.keys()].join("/");
}

/**
 * Visits all views and what their links lead to, up to `depth` steps from them and `most` of a kind, and returns the
 * addresses. A page that fails is an error. `look` sees each.
 */
export async function pages(page, { depth, most }, look = () => {}) {
  const seen = new Set();
  const kinds = {};
  let next = await views(page);
  for (let step = 0; step < depth; step += 1) {
    const found = [];
    for (const address of next) {
      if (seen.has(address) || kinds[kind(address)] >= most) continue;
      seen.add(address);
      kinds[kind(address)] = (kinds[kind(address)] ?? 0) + 1;
      const response = await page.goto(address);
      assert.ok(response.status() < 500, `${address}: ${response.status()}`);
      await page.locator("main h1").waitFor();
      await look(page, address);
      found.push(...(await page.locator("main a").evaluateAll((links) => links.map((link) => link.href))));
    }
    const { origin } = new URL(page.url());
    next = found.filter((address) => address.startsWith(`${origin}/console`)).map((address) => address.replace(/#.*/, ""));
  }
  return [...seen];
}
