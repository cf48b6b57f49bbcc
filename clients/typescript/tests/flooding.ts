/** Sends replies to a client's reply queue for a call that the client has not made; prints how many the broker refused. */

import { connect } from "amqplib";

const [url, queue, count] = process.argv.slice(2) as [string, string, string];
const CHUNK = 1_000;
const connection = await connect(url);
const channel = await connection.createConfirmChannel();
let refused = 0;
const confirmed = (error: unknown) => {
  if (error) refused += 1;
};
for (let sent = 0; sent < Number(count); sent += CHUNK) {
  for (let number = 0; number < CHUNK; number++) {
    channel.sendToQueue(queue, Buffer.from("{}"), { correlationId: "of-no-call" }, confirmed);
  }
  await channel.waitForConfirms().catch(() => {}); // it throws for what is refused
}
await connection.close();
console.log(refused);
