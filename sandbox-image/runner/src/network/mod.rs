//! The network gate: nothing is asked for before the sandbox is seen to reach the gateway and nothing else, and it is looked at
//! again and again while the run goes on. Who must be out of reach is said by the operator on the command line.

mod gate;
mod place;
mod probe;
mod tcp_info;
#[cfg(test)]
mod testing;
mod watch;

use std::time::Duration;

pub use gate::hold;
pub use place::Place;
pub use watch::watch;

/// What is tried, and how long and how often.
#[derive(Clone)]
pub struct Network {
    /// Must not be reached.
    pub fenced: Vec<Place>,
    /// Tried, reported, and allowed to be reached.
    pub observed: Vec<Place>,
    /// How long the fence may take to go up.
    pub patience: Duration,
    /// Between two looks while the run goes on.
    pub period: Duration,
}

impl Network {
    /// Network plugins put up a new Pod's fence within seconds.
    pub const PATIENCE: Duration = Duration::from_secs(30);
    /// A look costs one packet for each place.
    pub const PERIOD: Duration = Duration::from_secs(30);
}
