/** A private RabbitMQ node, a daemon, and a backend that counts effects; each ends with this process. */

import assert from "node:assert/strict";
import { type ChildProcess, execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { appendFileSync, mkdtempSync, openSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import http from "node:http";
import net from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import { type ConnectOptions, Toolbus } from "../src/index.js";

export const TOKEN = "a-token-of-the-tests-of-clients";
const PATIENCE = 90_000;
// As crates/toolbus-testing does: `epmd` and the node are one process group, which ends when standard input closes.
const GUARD = `
trap '' INT TERM HUP
setsid sh -c 'epmd -address 127.0.0.1 -port "$ERL_EPMD_PORT" &
    until epmd -names >/dev/null 2>&1; do sleep 0.05; done
    exec "$1/rabbitmq-server"' node "$1" </dev/null >"$2/console.log" 2>&1 &
said=$(cat)
kill -KILL "-$!"
wait
[ "$said" = keep ] || rm -rf -- "$2"
`;

/** Waits until a condition holds. */
export async function eventually(condition: () => unknown, what = "it", time = 10_000): Promise<void> {
  const ends = Date.now() + time;
  while (!(await condition())) {
    assert(Date.now() < ends, `${what} does not happen`);
    await sleep(20);
  }
}

async function freePorts(count: number): Promise<number[]> {
  const servers = Array.from({ length: count }, () => net.createServer().listen(0, "127.0.0.1"));
  await Promise.all(servers.map((server) => once(server, "listening")));
  return servers.map((server) => {
    const { port } = server.address() as net.AddressInfo;
    server.close();
    return port;
  });
}

async function accepts(port: number): Promise<boolean> {
  const socket = net.connect(port, "127.0.0.1");
  const connected = once(socket, "connect").then(
    () => true,
    () => false,
  );
  return connected.finally(() => socket.destroy());
}

function programs(): string {
  if (process.env.TOOLBUS_RABBITMQ) return process.env.TOOLBUS_RABBITMQ;
  const lib = "/usr/lib/rabbitmq/lib";
  const newest = readdirSync(lib).sort().at(-1);
  assert(newest, "install it with `apt-get install rabbitmq-server`");
  return path.join(lib, newest, "sbin");
}

/** A node with free ports and a folder of its own. */
export class Broker {
  private guard: ChildProcess | undefined;

  private constructor(
    readonly port: number,
    private readonly folder: string,
    private readonly environment: NodeJS.ProcessEnv,
  ) {}

  static async start(): Promise<Broker> {
    const folder = mkdtempSync(path.join(tmpdir(), "toolbus-rabbit-"));
    const [port, dist, epmd] = (await freePorts(3)) as [number, number, number];
    const file = (name: string, text: string) => writeFileSync(path.join(folder, name), text);
    file("rabbitmq.conf", `listeners.tcp.default = 127.0.0.1:${port}\ndisk_free_limit.absolute = 1MB\n`);
    file("enabled_plugins", "[].\n");
    const broker = new Broker(port, folder, {
      ...process.env,
      HOME: folder,
      ERL_FLAGS: "-start_epmd false",
      RABBITMQ_MNESIA_BASE: path.join(folder, "mnesia"),
      RABBITMQ_LOG_BASE: path.join(folder, "log"),
      RABBITMQ_CONFIG_FILE: path.join(folder, "rabbitmq.conf"),
      RABBITMQ_CONF_ENV_FILE: path.join(folder, "none.conf"),
      RABBITMQ_ENABLED_PLUGINS_FILE: path.join(folder, "enabled_plugins"),
      RABBITMQ_NODENAME: `toolbus${dist}@localhost`,
      RABBITMQ_DIST_PORT: String(dist),
      ERL_EPMD_PORT: String(epmd),
      ERL_EPMD_ADDRESS: "127.0.0.1",
      RABBITMQ_CTL_DIST_PORT_MIN: "20000",
      RABBITMQ_CTL_DIST_PORT_MAX: "29999",
    });
    await broker.start();
    return broker;
  }

  url(user = "guest", password = "guest"): string {
    return `amqp://${user}:${password}@127.0.0.1:${this.port}/%2f`;
  }

  async start(): Promise<void> {
    const guard = spawn("sh", ["-c", GUARD, "guard", programs(), this.folder], {
      stdio: ["pipe", "ignore", "inherit"],
      env: this.environment,
      cwd: this.folder,
      detached: true,
    });
    letEnd(guard);
    this.guard = guard;
    await eventually(() => accepts(this.port), "the start of the broker", PATIENCE);
  }

  /** Runs `rabbitmqctl`, again while the node does not yet say that it runs. */
  async ctl(...args: string[]): Promise<string> {
    const run = promisify(execFile);
    for (const ends = Date.now() + PATIENCE; ; ) {
      try {
        const options = { env: this.environment, cwd: this.folder };
        return (await run(path.join(programs(), "rabbitmqctl"), ["--quiet", ...args], options)).stdout;
      } catch (error) {
        if (!String(error).includes("requires the 'rabbit' app to be running") || Date.now() > ends) throw error;
      }
    }
  }

  /** Writes to disk which quorum queues there are: a node that is killed before has queues that never reply. */
  async flush(): Promise<void> {
    await this.ctl("eval", "[dets:sync(Table) || Table <- dets:all()].");
  }

  /** Ends the node as a lost machine does; `start` finds its files. */
  async kill(): Promise<void> {
    const guard = this.guard;
    guard?.stdin?.end("keep");
    guard?.ref();
    if (guard?.exitCode === null) await once(guard, "exit");
    await eventually(async () => !(await accepts(this.port)), "the end of the broker", PATIENCE);
  }
}

/** A way to the broker that can be cut, or made silent. */
export class TcpProxy {
  /** Whether new connections end at once. */
  refuses = false;
  private readonly open = new Set<net.Socket>();
  /** Ends at the client, by those at the broker. */
  private readonly clients = new Map<net.Socket, net.Socket>();
  private readonly server: net.Server;

  private constructor(target: number) {
    this.server = net.createServer((near) => {
      if (this.refuses) return void near.destroy();
      const far = net.connect(target, "127.0.0.1");
      this.clients.set(far, near);
      for (const [one, other] of [
        [near, far],
        [far, near],
      ] as const) {
        this.open.add(one);
        one
          .on("error", () => {})
          .on("close", () => {
            this.open.delete(one);
            this.clients.delete(one);
            other.destroy();
          });
        one.pipe(other);
      }
    });
    this.server.listen(0, "127.0.0.1").unref();
  }

  static async start(broker: Broker): Promise<TcpProxy> {
    const proxy = new TcpProxy(broker.port);
    await once(proxy.server, "listening");
    return proxy;
  }

  url(user = "guest", password = "guest"): string {
    return `amqp://${user}:${password}@127.0.0.1:${(this.server.address() as net.AddressInfo).port}/%2f`;
  }

  /** Ends all connections without a word. */
  cut(): void {
    for (const end of this.open) end.destroy();
  }

  /** Drops what the broker sends over the connections of now, until they are cut; what clients send arrives. */
  silence(): void {
    for (const [far, near] of this.clients) far.unpipe(near).resume();
  }

  /** Ends the connections of a client, and waits until it has others. */
  async cutUntilBack(bus: Toolbus): Promise<void> {
    const before = bus["link"].reconnects;
    this.cut();
    await eventually(() => bus["link"].reconnects > before, "another connection");
  }
}

/** An HTTP server: `/effect` counts its requests by their `id`, `/flaky` fails, `/slow` takes its time. */
export class Backend {
  readonly effects = new Map<string, number>();
  failures = 0;
  private readonly server = http.createServer(async (request, response) => {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk);
    const { id, seconds = 1 } = JSON.parse(Buffer.concat(chunks).toString() || "{}");
    this.effects.set(id, (this.effects.get(id) ?? 0) + 1);
    const fails = request.url === "/flaky" && this.failures > 0;
    if (fails) this.failures -= 1;
    if (request.url === "/slow") await sleep(seconds * 1000);
    response.writeHead(fails ? 503 : 200).end("done");
  });

  static async start(): Promise<Backend> {
    const backend = new Backend();
    backend.server.on("connection", (socket) => socket.unref());
    backend.server.listen(0, "127.0.0.1").unref();
    await once(backend.server, "listening");
    return backend;
  }

  get port(): number {
    return (this.server.address() as net.AddressInfo).port;
  }
}

function endpoint(name: string, where: string, port: number, effect: string, more = ""): string {
  const schema =
    '{"type":"object","properties":{"id":{"type":"string"},"seconds":{"type":"number"}},"required":["id"]}';
  return `[[rest.endpoints]]
name = "${name}"
description = "Of the tests"
method = "POST"
body = "json"
url = "http://127.0.0.1:${port}${where}"
timeout = "20s"
parameters = '${schema}'
effect = "${effect}"
${more}
`;
}

function configuration(url: string, listen: number, backend: number): string {
  return `[bus]
url = "${url}"
[store]
url = "sqlite:toolbus.db"
[tools]
echo = true
[http]
listen = "127.0.0.1:${listen}"
tokens = { ana = "${TOKEN}" }
[tools.limits."*"]
timeout = "20s"
[tools.limits.echo]
max_in_flight = 64
[mcp.servers.reporting]
command = "${process.execPath}"
args = ["${path.join(import.meta.dirname, "reporting.js")}"]
${endpoint("effect", "/effect", backend, "effectful")}
${endpoint("flaky", "/flaky", backend, "idempotent")}
${endpoint("slow", "/slow", backend, "effectful")}
${endpoint("limited", "/effect", backend, "effectful")}
${endpoint("write_to", "/effect", backend, "effectful")}
${endpoint("private", "/effect", backend, "effectful", 'auth = { type = "bearer", per_agent = { bo = { token = "x" } } }')}
[identity]
trust_headers = true
[agents.ana]
allowed_tools = ["*"]
tool_rate_limits = { limited = { rps = 2.0, burst = 1 } }
outbound_allowlist = { people = ["ana"] }
${providers()}
[agents.busy]
allowed_tools = ["*"]
max_in_flight = 1
max_queued = 1
[outbound.people]
tools = ["write_to"]
recipients = ["/id"]
compare = "exact"
`;
}

/** Names of programs that may provide tools to the agent `cara`: that of the example, and one for each test. */
export const PROVIDERS = ["billing", ...Array.from({ length: 30 }, (_, number) => `p${number}`)];

function providers(): string {
  const set = (name: string) => `[toolsets.${name}]\nkind = "remote"\nprovider = "${name}"\n`;
  return `${PROVIDERS.map(set).join("")}[agents.cara]\ntoolsets = ${JSON.stringify(PROVIDERS)}\n`;
}

/** A daemon with `echo`, REST tools of a `Backend`, and an MCP server that reports progress. */
export class Daemon {
  private readonly folder = mkdtempSync(path.join(tmpdir(), "toolbus-daemon-"));
  private process: ChildProcess | undefined;

  private constructor(private readonly listen: number) {
    process.on("exit", () => {
      this.process?.kill("SIGKILL");
      rmSync(this.folder, { recursive: true, force: true });
    });
  }

  static async start(url: string, backend: Backend): Promise<Daemon> {
    const [listen] = (await freePorts(1)) as [number];
    const daemon = new Daemon(listen);
    writeFileSync(path.join(daemon.folder, "toolbus.toml"), configuration(url, listen, backend.port));
    await daemon.start();
    return daemon;
  }

  get mcp(): string {
    return `http://127.0.0.1:${this.listen}/mcp`;
  }

  async start(): Promise<void> {
    const log = path.join(this.folder, "log");
    appendFileSync(log, "");
    const output = openSync(log, "a");
    const daemon = spawn(process.env.TOOLBUS_BIN ?? "toolbus", ["serve", "--config", "toolbus.toml"], {
      cwd: this.folder,
      stdio: ["ignore", output, output],
    });
    letEnd(daemon);
    this.process = daemon;
    const isReady = async () => {
      assert.equal(daemon.exitCode, null, readFileSync(log, "utf8").slice(-5000));
      return fetch(`http://127.0.0.1:${this.listen}/readyz`, { headers: { connection: "close" } }).then(
        (reply) => reply.ok,
        () => false,
      );
    };
    await eventually(isReady, "the start of the daemon", PATIENCE);
  }

  async kill(): Promise<void> {
    const daemon = this.process;
    daemon?.ref();
    daemon?.kill("SIGKILL");
    if (daemon?.exitCode === null && daemon.signalCode === null) await once(daemon, "exit");
  }
}

/** What tests share. */
export interface World {
  broker: Broker;
  backend: Backend;
  daemon: Daemon;
  connect(options?: Partial<ConnectOptions>): Promise<Toolbus>;
}

export async function newWorld(): Promise<World> {
  const [broker, backend] = await Promise.all([Broker.start(), Backend.start()]);
  const daemon = await Daemon.start(broker.url(), backend);
  const connect = (options?: Partial<ConnectOptions>) =>
    Toolbus.connect(broker.url(), { agent: "ana", timeout: 20, ...options });
  return { broker, backend, daemon, connect };
}

let shared: Promise<World> | undefined;

/** One broker, one daemon and one backend for all tests of a process. */
export function world(): Promise<World> {
  shared ??= newWorld();
  return shared;
}

/** Lets this process end while a child runs, which ends with it. */
function letEnd(child: ChildProcess): void {
  child.unref();
  (child.stdin as net.Socket | null)?.unref();
}
