//! HTTP+SSE, as of protocol version 2024-11-05.
