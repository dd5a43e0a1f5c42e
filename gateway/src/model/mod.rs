//! model (in the making).
