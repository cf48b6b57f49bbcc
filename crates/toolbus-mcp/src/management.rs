//! Tools with which agents look at servers and use them.
