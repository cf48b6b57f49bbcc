import { Toolbus } from "@toolbus/client";

const bus = await Toolbus.connect("amqp://guest:guest@127.0.0.1:5672/%2f", { agent: "ana" });
console.log(String(await bus.call("echo", { text: "hello" }, { timeout: 5 })));
await bus.close();
