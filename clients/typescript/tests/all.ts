/** All tests, in one process: they share a broker and a daemon. */

import "./package.test.js";
import "./calls.test.js";
import "./connection.test.js";
import "./replies.test.js";
import "./provider.test.js";
import "./changes.test.js";
import "./wire.test.js";
import "./mcp.test.js";
import "./models.test.js";
import "./faults.test.js";
