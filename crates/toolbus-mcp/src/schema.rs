//! Whether a server's schema can be trusted with arguments.
