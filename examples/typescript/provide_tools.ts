// Offers tools to agents. In the daemon's configuration: [toolsets.billing], kind = "remote", provider = "billing".
import { Result, Toolbus } from "@toolbus/client";

const invoices = new Map([["2026-07", { amount: 120, isPaid: false }]]);
const bus = await Toolbus.connect("amqp://guest:guest@127.0.0.1:5672/%2f", { agent: "billing" });
const number = { type: "string", description: "Number of the invoice" };
const parameters = { type: "object", properties: { number }, required: ["number"] };

bus.tool<{ number: string }>(
  { name: "find_invoice", description: "Finds an invoice.", parameters, effect: "read-only" },
  ({ number }) => invoices.get(number) ?? new Result("There is no such invoice.", true),
);

bus.tool<{ number: string }>(
  { name: "pay_invoice", description: "Pays an invoice once.", parameters, effect: "idempotent" },
  async ({ number }, call) => {
    const invoice = invoices.get(number);
    if (!invoice) return new Result("There is no such invoice.", true);
    call.report(1, 2, "The bank is asked.");
    call.signal.throwIfAborted();
    invoice.isPaid = true;
    return `Paid for ${call.agent}.`;
  },
);

const stop = new AbortController();
process.once("SIGINT", () => stop.abort());
await bus.serve({ signal: stop.signal });
await bus.close();
