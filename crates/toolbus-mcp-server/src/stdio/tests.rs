mod bad_input;
mod endings;
mod fixture;
mod stateless;
mod traffic;
