/**
 * Calls per second of the client at 64 in flight, against bare RPC with amqplib on the same broker and daemon.
 *
 * Starts a broker and a daemon of its own; TOOLBUS_BIN names the daemon's binary, CALLS the calls of one round. The exit
 * code is 1 if the median ratio is below 0.8.
 */

import { randomUUID } from "node:crypto";
import { type ChannelModel, connect } from "amqplib";
import { newWorld } from "./tests/support.js";

const IN_FLIGHT = 64;
const ROUNDS = 5;
const WANTED = 0.8;
const CALLS = Number(process.env.CALLS ?? 4000);

/** Calls per second. */
async function rate(call: () => Promise<unknown>): Promise<number> {
  let started = 0;
  const began = performance.now();
  const worker = async () => {
    while (started++ < CALLS) await call();
  };
  await Promise.all(Array.from({ length: IN_FLIGHT }, worker));
  return (CALLS / (performance.now() - began)) * 1000;
}

/** The usual RPC: an exclusive queue, and a promise for each correlation id. */
async function bare(connection: ChannelModel): Promise<() => Promise<unknown>> {
  const channel = await connection.createChannel();
  const { queue } = await channel.assertQueue("", { exclusive: true });
  const waiting = new Map<string, (body: Buffer) => void>();
  const receive = waiting.get.bind(waiting);
  await channel.consume(queue, (message) => message && receive(message.properties.correlationId)?.(message.content), {
    noAck: true,
  });
  const body = Buffer.from(JSON.stringify({ toolName: "echo", arguments: { text: "hello" } }));
  return async () => {
    const id = randomUUID();
    const reply = new Promise<Buffer>((resolve) => waiting.set(id, resolve));
    const headers = { "rb-source": "ana" };
    const properties = { correlationId: id, messageId: id, replyTo: queue, persistent: true, headers };
    channel.publish("rockbot", "tool.invoke", body, properties);
    const read = JSON.parse((await reply).toString());
    waiting.delete(id);
    return read.content;
  };
}

const world = await newWorld();
const connection = await connect(world.broker.url());
const bus = await world.connect();
const plain = await bare(connection);
const ratios: number[] = [];
for (let round = 0; round <= ROUNDS; round++) {
  const ofBare = await rate(plain);
  const ofClient = await rate(() => bus.call("echo", { text: "hello" }));
  if (round === 0) continue; // it warms up
  const ratio = ofClient / ofBare;
  ratios.push(ratio);
  console.log(`bare ${ofBare.toFixed(0)}/s, client ${ofClient.toFixed(0)}/s, ratio ${ratio.toFixed(2)}`);
}
const median = ratios.sort((a, b) => a - b)[ROUNDS >> 1] ?? 0;
console.log(`median ratio at ${IN_FLIGHT} in flight: ${median.toFixed(2)}`);
process.exitCode = median < WANTED ? 1 : 0;
await bus.close();
await connection.close();
