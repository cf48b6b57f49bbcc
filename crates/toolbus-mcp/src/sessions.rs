//! Servers that are started for each session of a tool set.
