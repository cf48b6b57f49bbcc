mod calls;
mod fixture;
mod lists;
