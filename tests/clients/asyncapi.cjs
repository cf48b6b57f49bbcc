// Reads an AsyncAPI document with AsyncAPI's parser, and prints as JSON what is wrong with it, and the types of messages
// whose bodies it knows.
//
// asyncapi.cjs FILE

const { Parser, fromFile } = require('@asyncapi/parser');

// The worst severities of the parser: errors and warnings.
const MAX_SEVERITY = 1;

async function main() {
  const { document, diagnostics } = await fromFile(new Parser(), process.argv[2]).parse();
  const faults = diagnostics.filter(({ severity }) => severity <= MAX_SEVERITY);
  const messages = document?.messages().all() ?? [];
  const known = messages.filter((message) => message.payload()?.type() === 'object');
  console.log(JSON.stringify({
    faults: faults.map(({ path, message }) => `${path.join('/')}: ${message}`),
    types: known.map((message) => message.name()).sort(),
  }));
}

main();
