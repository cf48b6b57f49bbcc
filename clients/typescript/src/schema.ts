/** Schemas of the arguments of tools. */

import { InvalidArguments, Misuse } from "./errors.js";
import { type Fields, isObject } from "./messages.js";

const MAX_COMPLAINT = 1_000;

/** A schema of zod 4, or another library with Standard Schema and Standard JSON Schema. */
export interface Schema<Output = unknown> {
  readonly "~standard": {
    readonly vendor: string;
    readonly validate: (value: unknown) => Validated<Output> | Promise<Validated<Output>>;
    readonly jsonSchema?: { readonly input: (options: { target: "draft-2020-12" }) => Fields };
  };
}

type Validated<Output> =
  | { readonly value: Output; readonly issues?: undefined }
  | { readonly issues: readonly Issue[] };

interface Issue {
  readonly message: string;
  readonly path?: readonly (PropertyKey | { readonly key: PropertyKey })[] | undefined;
}

/** Makes JSON Schema of what describes arguments, and the check of arguments. */
export function checked(
  tool: string,
  parameters: Fields | Schema = {},
): { inputSchema: Fields; check: (args: Fields) => unknown } {
  const library = isSchema(parameters) ? parameters["~standard"] : undefined;
  if (library && !library.jsonSchema) throw new Misuse(`the schema of tool '${tool}' does not convert to JSON Schema`);
  const schema = library?.jsonSchema?.input({ target: "draft-2020-12" }) ?? (parameters as Fields);
  if ((schema.type ?? "object") !== "object") throw new Misuse(`the parameters of tool '${tool}' are not an object`);
  const required = Array.isArray(schema.required) ? schema.required.map(String) : [];
  return {
    inputSchema: { ...schema, type: "object" },
    check: async (args) => {
      if (!library) {
        const missing = required.filter((name) => !Object.hasOwn(args, name));
        if (missing.length > 0)
          throw complaint(
            tool,
            missing.map((name) => `/${name} is required`),
          );
        return args;
      }
      const result = await library.validate(args);
      if (!result.issues) return result.value;
      // The words of zod are of the schema alone; those of others may have values.
      const isQuiet = library.vendor === "zod";
      throw complaint(
        tool,
        result.issues.map((issue) => `${pointer(issue)}: ${isQuiet ? issue.message : "invalid"}`),
      );
    },
  };
}

function isSchema(parameters: Fields | Schema): parameters is Schema {
  return isObject(parameters["~standard"]);
}

function pointer({ path = [] }: Issue): string {
  return path.map((part) => `/${String(typeof part === "object" ? part.key : part)}`).join("") || "/";
}

function complaint(tool: string, problems: string[]): InvalidArguments {
  const text = `The arguments of tool '${tool}' do not fit its schema: ${problems.join("; ")}`;
  return new InvalidArguments("invalid_arguments", text.slice(0, MAX_COMPLAINT), { outcome: "not_started" });
}
