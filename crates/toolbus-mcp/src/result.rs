//! What a server answered, as the result of a tool.
