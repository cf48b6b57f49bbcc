//! Lines of JSON over the standard input and output of a child process.
