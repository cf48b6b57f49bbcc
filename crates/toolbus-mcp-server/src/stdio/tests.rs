mod bad_input;
mod endings;
mod fixture;
mod lines;
mod stateless;
mod traffic;
