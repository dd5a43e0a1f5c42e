//! serve (in the making).
