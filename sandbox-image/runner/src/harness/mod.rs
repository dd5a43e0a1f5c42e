//! A command-line agent at work: started in the executor by a recipe, given a loopback port for its model calls and its
//! questions, heard, and ended. What it says of itself decides nothing that checks, changed paths, denials or budget decide.

mod field;
mod forward;
mod hook;
mod lines;
mod model_routes;
mod output;
mod permission;
mod port;
mod recipe;
mod supervise;
mod trouble;

pub use port::Port;
pub use supervise::{HarnessEnd, Supervisor};
