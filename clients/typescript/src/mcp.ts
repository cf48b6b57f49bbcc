/** The client over the daemon's MCP server, with the official package `@modelcontextprotocol/sdk`. */

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import {
  type CallToolResult,
  CallToolResultSchema,
  ErrorCode,
  McpError,
  type Tool,
} from "@modelcontextprotocol/sdk/types.js";
import { BrokerUnreachable, type BusError, LoginRefused, ToolError, ToolNotFound, ToolTimeout } from "./errors.js";
import { type Block, type Fields, isObject, Result, trace } from "./messages.js";
import { after, left, retrying } from "./retrying.js";

export interface McpOptions {
  /** Deadline of calls that have none of their own, in seconds: 60. */
  timeout?: number;
  /** Attempts after the first, of calls that say nothing else: 3. */
  retries?: number;
}

export interface McpCallOptions {
  timeout?: number | undefined;
  key?: string | undefined;
  retries?: number | undefined;
  signal?: AbortSignal | undefined;
}

type McpFormat = "mcp" | "openai" | "anthropic";

/** Made by `Toolbus.mcp`. `call` and `tools` are as those of `Toolbus`. */
export class McpToolbus implements AsyncDisposable {
  private constructor(
    private readonly client: Client,
    private readonly options: McpOptions,
  ) {}

  static async connect(url: string, token: string | undefined, options: McpOptions = {}): Promise<McpToolbus> {
    const client = new Client({ name: "toolbus-client", version: "0.1.0" });
    try {
      const headers = token === undefined ? {} : { Authorization: `Bearer ${token}` };
      await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));
    } catch (error) {
      throw explained(url, error);
    }
    return new McpToolbus(client, options);
  }

  async close(): Promise<void> {
    await this.client.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** As `Toolbus.call`. The daemon grants the tool's own time, and a call that is over `timeout` is cancelled. */
  async call(tool: string, args: Fields = {}, options: McpCallOptions = {}): Promise<Result> {
    const { key, signal } = options;
    const deadline = after(options.timeout ?? this.options.timeout ?? 60);
    const meta: Fields = trace();
    if (key !== undefined) meta["rb-idempotency-key"] = key;
    const attempt = async () => {
      try {
        const params = { name: tool, arguments: args, _meta: meta };
        const time = left(deadline);
        // Not `callTool`, which refuses results that do not match their schema: the tool has acted.
        const request = { method: "tools/call", params } as const;
        const options = { timeout: time, ...(signal && { signal }) };
        return result(tool, await this.client.request(request, CallToolResultSchema, options));
      } catch (error) {
        signal?.throwIfAborted();
        throw ofCall(error);
      }
    };
    return retrying(attempt, deadline, options.retries ?? this.options.retries ?? 3, key, signal);
  }

  /**
   * Lists the agent's tools in the format `mcp`, `openai` or `anthropic`.
   *
   * The schemas are the tools' own: a list over the bus leaves out what providers refuse.
   */
  async tools(format: McpFormat = "mcp", { timeout = 10 }: { timeout?: number } = {}): Promise<Fields[]> {
    const form = FORMATS[format];
    if (!form) throw new RangeError(`formats over MCP are ${Object.keys(FORMATS).join(", ")}, not ${format}`);
    const deadline = after(timeout);
    const found: Tool[] = [];
    let cursor: string | undefined;
    do {
      const page = await this.client.listTools(cursor === undefined ? {} : { cursor }, { timeout: left(deadline) });
      found.push(...page.tools);
      cursor = page.nextCursor;
    } while (cursor !== undefined);
    return found.map(form);
  }
}

const FORMATS: Record<McpFormat, (tool: Tool) => Fields> = {
  mcp: (tool) => ({ ...tool }),
  openai: (tool) => {
    const description = (tool.description ?? "").slice(0, 1024);
    return { type: "function", function: { name: tool.name, description, parameters: tool.inputSchema } };
  },
  anthropic: (tool) => {
    return { name: tool.name, description: tool.description ?? "", input_schema: tool.inputSchema };
  },
};

function result(tool: string, { content, isError, structuredContent, _meta }: CallToolResult): Result {
  const text = content.flatMap((part) => (part.type === "text" ? [part.text] : [])).join("\n");
  const failure = _meta?.["toolbus/error"];
  if (isObject(failure)) throw ToolError.fromReply({ message: text, ...failure });
  const blocks = content.filter((part) => part.type !== "text") as unknown as Block[];
  return new Result(text || JSON.stringify(structuredContent ?? ""), isError ?? false, blocks, tool);
}

function ofCall(error: unknown): unknown {
  if (!(error instanceof McpError)) return error;
  if (error.code === ErrorCode.RequestTimeout) {
    return new ToolTimeout("timeout", "no reply in time", { outcome: "unknown" });
  }
  if (error.code !== ErrorCode.InvalidParams) return new ToolError("mcp", error.message);
  return new ToolNotFound("tool_not_found", error.message, { outcome: "not_started" });
}

function explained(url: string, error: unknown): BusError {
  const { code, message, cause } = error as { code?: unknown; message: string; cause?: Error };
  if (code === 401) return new LoginRefused(`the MCP server at ${url} refuses the token`);
  if (code === 404) {
    return new BrokerUnreachable(`no MCP server at ${url}: no \`http.tokens\` there, or the path is wrong`);
  }
  return new BrokerUnreachable(`no MCP server at ${url}: ${cause?.message || message}`);
}
