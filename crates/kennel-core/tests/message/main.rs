//! One line of MCP: what counts as a message, and that nothing but an id ever changes in it.

#[path = "../lifetime/chance.rs"]
mod chance;
mod exactness;
mod lines;
mod odd;
mod shapes;
