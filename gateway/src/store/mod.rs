//! The stores behind their traits (half B).

/// The event store and the artifact store.
pub struct Stores {}
