mod bad_input;
mod endings;
mod stateless;
mod traffic;
mod world;
