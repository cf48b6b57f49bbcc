/** A tool whose parameters change while an agent uses it. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { InvalidArguments, Toolbus, type ToolsChanged } from "../src/index.js";
import { eventually, world } from "./support.js";

const NAME = "billing.find";

test("a call for an earlier schema is refused, and a new list has the schema of now", async () => {
  const { broker, connect } = await world();
  await using cara = await connect({ agent: "cara", retries: 0 });
  const changes: ToolsChanged[] = [];
  const found: unknown[] = [];
  const schemaOf = (type: string) => ({ type: "object", properties: { number: { type } }, required: ["number"] });
  const listed = async () => (await cara.tools("mcp", { names: [NAME] }))[0]?.inputSchema;
  /** Serves the tool, whose number is of a type, while some work is done. */
  const serving = async (type: string, work: () => Promise<void>) => {
    const stop = new AbortController();
    await using provider = await Toolbus.connect(broker.url(), { agent: "billing" });
    provider.tool({ name: "find", parameters: schemaOf(type), effect: "read-only" }, (args) => void found.push(args));
    const served = provider.serve({ signal: stop.signal });
    await work().finally(() => stop.abort());
    await served;
  };
  const changed = (isMeant: (change: ToolsChanged) => boolean) =>
    eventually(() => changes.some(isMeant), "the change", 20_000);

  await cara.onToolsChanged((change) => changes.push(change));
  await serving("string", async () => {
    await changed(({ added }) => added.includes(NAME));
    assert.deepEqual(await listed(), schemaOf("string"));
    await cara.call(NAME, { number: "7" });
  });
  const before = changes.at(-1)?.version;
  await serving("integer", async () => {
    // A tool that changes under its name is in neither list.
    await changed(({ version, added, removed }) => version !== before && added.length + removed.length === 0);
    await assert.rejects(cara.call(NAME, { number: "7" }), (error) => {
      assert(error instanceof InvalidArguments && !error.retryable, `${error}`);
      assert.equal(
        error.message,
        'The arguments do not fit the tool\'s parameters: /number: value is not of type "integer"',
      );
      return true;
    });
    assert.deepEqual(await listed(), schemaOf("integer"));
    await cara.call(NAME, { number: 7 });
  });
  assert.deepEqual(found, [{ number: "7" }, { number: 7 }]);
});
