mod calls;
mod lists;
mod world;
