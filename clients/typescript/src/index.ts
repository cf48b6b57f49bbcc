/** Client of Toolbus, a daemon that runs the tool calls of AI agents over RabbitMQ. */

export {
  type CallOptions,
  type ConnectOptions,
  type Format,
  Session,
  Toolbus,
  type ToolsOptions,
} from "./bus.js";
export * from "./errors.js";
export type { McpOptions, McpToolbus } from "./mcp.js";
export { type Block, type Fields, Progress, Result, type ToolsChanged } from "./messages.js";
export type { ServeOptions, ToolDefinition } from "./provider.js";
export type { Effect } from "./replies.js";
export type { Call, Handler } from "./running.js";
export type { Schema } from "./schema.js";
