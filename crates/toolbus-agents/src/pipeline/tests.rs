mod fixture;
mod refusals;
mod running;
mod speed;
