/** A statement's page: in the colours of the lab. */

import { themes } from "./theme.js";

themes(() => {});
